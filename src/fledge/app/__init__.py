"""The browser app: training curves, recordings and live trainings to watch, and matches to play. It works offline.

    pages/       one module for each page, imported automatically: label, path and `register(server)`
    server/      building and serving the app, access control, page frame, static files
    runs/        files that may be shown, metrics and settings of runs
    recordings/  recordings as data for the player
    play/        matches between people and policies
    exporters/   recordings as files: ACMI, MCAP, HTML, JSON, pictures
    static/      JavaScript and CSS; a task's own page lies in that task's folder (`TaskView.page`)

Each page has a route; the data that it shows has separate routes (`server.api`), which return JSON or bytes. Text from files
reaches a page as JSON and is inserted with textContent, never as markup.
"""
