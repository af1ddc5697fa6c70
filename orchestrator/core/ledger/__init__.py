"""Money: caps, holds, settlements, alerts, and which machines may be requested under a hold."""
