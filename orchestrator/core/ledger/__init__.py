"""Money: caps, holds, settlements, and what may be asked for under them."""
