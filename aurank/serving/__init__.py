"""A page in the browser and an API that search an index of images (the extra `serve`): FastAPI behind uvicorn."""

from aurank.serving.server import serve

__all__ = ["serve"]
