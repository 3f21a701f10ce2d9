"""Lightning plugins, built by typed factories so that YAML can name them."""
