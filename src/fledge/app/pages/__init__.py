"""One module a page. Each has `register(server)`, which adds its routes; `server.build` calls them in this order."""
