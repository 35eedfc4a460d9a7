"""How navigation is shown: recordings, pictures, the browser."""
