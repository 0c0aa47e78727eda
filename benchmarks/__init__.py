"""What the quality rows and the documentation measure. Nothing here is shipped."""
