"""The studio: a local web app with a server (Starlette), an API per page, and the built page."""
