"""The browser app: training curves, worlds to watch, and fights to play, served on this machine and working offline.

    server    the app as one object, and serving it           guard     who may ask, and with which headers it is answered
    shelf     what may be shown, by ids that the server made  layout    the frame of every page: title bar, theme
    pages/    one module a page, each with register(server)   command   fledge watch, replay and play

Pages are reached by routes; data by routes of their own (`server.api`), as JSON or bytes. What comes out of a file (names,
texts, numbers) is data: it reaches a page as JSON and is put in with textContent, never as markup.
"""
