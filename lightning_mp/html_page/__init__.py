"""One page style, escaping and SVG charts: a page stands alone, fetches nothing and reads without JavaScript."""
