"""How a task is shown: recordings, pictures, the browser, other programs."""
