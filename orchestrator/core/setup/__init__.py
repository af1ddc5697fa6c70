"""What a project needs before the first launch: steps as data, three ways to read them, and one way to take them."""
