"""What people do with dead letters: look at them, decode them again, discard them."""
