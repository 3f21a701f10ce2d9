"""The precision audit: what float16 and bfloat16 will do to every column, before anything is trained."""
