"""What a config takes on devices that need not exist."""
