"""What every room uses: trees, keys, checks, strict decoding, files, descriptions."""
