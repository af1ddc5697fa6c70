"""Google's services by Google's own clients: storage, and what has no client worth its size. `network` is what all of
them send through."""
