"""How duels are shown: recordings, pictures, controls, the browser."""
