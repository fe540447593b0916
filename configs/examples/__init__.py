"""What the example configurations name by import path. Copy a module to start your own."""
