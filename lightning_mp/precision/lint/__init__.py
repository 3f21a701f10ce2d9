"""What float16 breaks in a module, found before it is trained."""
