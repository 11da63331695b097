"""The OpenAPI text of the server, made of the models of `schema`."""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from aurank.serving import schema

_REF = "#/components/schemas/"
_ERRORS = {
    "400": "the request cannot be read",
    "403": "the request comes from another site",
    "404": "there is no such thing",
    "408": "the upload took too long",
    "413": "too many bytes or pixels",
    "415": "the content is of another kind than expected",
    "422": "a value is not possible, or the photo cannot be decoded",
    "503": "too many searches are waiting; try again in a moment",
}
_TAKEN: list[type[BaseModel]] = [schema.RowSearch, schema.PhotoSearch]
_GIVEN: list[type[BaseModel]] = [
    schema.SearchAnswer, schema.ImagesAnswer, schema.ClassesAnswer, schema.InfoAnswer, schema.ErrorAnswer
]  # fmt: skip


def openapi(version: str) -> dict[str, Any]:
    """Return the description of every path below /api, as OpenAPI 3.1."""
    taken: list[tuple[type[BaseModel], Any]] = [(model, "validation") for model in _TAKEN]
    given: list[tuple[type[BaseModel], Any]] = [(model, "serialization") for model in _GIVEN]
    _, schemas = models_json_schema([*taken, *given], ref_template=_REF + "{model}")
    row = {"name": "row", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 0}}
    photo = {"type": "string", "format": "binary", "contentMediaType": "image/*"}
    form = schemas["$defs"]["PhotoSearch"]
    form |= {"properties": {"photo": photo, **form["properties"]}, "required": ["photo"]}
    by_row, by_photo = ({"schema": {"$ref": _REF + name}} for name in ("RowSearch", "PhotoSearch"))
    search = _operation(
        "Search with an image of the gallery or a photo", "SearchAnswer", "400 403 404 408 413 415 422 503"
    )
    search["requestBody"] = {
        "required": True,
        "content": {"application/json": by_row, "multipart/form-data": by_photo},
    }
    listing = _operation("List the gallery", "ImagesAnswer", "404 422")
    listing["parameters"] = _query_parameters(schema.Window)
    thumbnail = _operation("A small picture of an image of the gallery", None, "404 503")
    thumbnail["parameters"] = [row]
    paths = {
        "/api/info": {"get": _operation("What is served", "InfoAnswer", "")},
        "/api/classes": {"get": _operation("List the classes", "ClassesAnswer", "")},
        "/api/images": {"get": listing},
        "/api/images/{row}/thumbnail": {"get": thumbnail},
        "/api/search": {"post": search},
    }
    about = "Search an index of images. Read-only. Images go by their number; every error is one line of text."
    return {
        "openapi": "3.1.0",
        "info": {"title": "aurank serve", "version": version, "description": about},
        "paths": paths,
        "components": {"schemas": schemas["$defs"]},
    }


def _operation(summary: str, answer: str | None, errors: str) -> dict[str, Any]:
    """Return one operation: its answer (a picture where None is named), and why it may be refused."""
    picture: dict[str, Any] = {"image/jpeg": {}, "image/png": {}}
    content = picture if answer is None else {"application/json": {"schema": {"$ref": _REF + answer}}}
    refusal = {"application/json": {"schema": {"$ref": _REF + "ErrorAnswer"}}}
    answers: dict[str, Any] = {"200": {"description": "as asked for", "content": content}}
    answers |= {code: {"description": _ERRORS[code], "content": refusal} for code in errors.split()}
    return {"summary": summary, "responses": answers}


def _query_parameters(model: type[BaseModel]) -> list[dict[str, Any]]:
    """Return the fields of a model as parameters of an address."""
    properties = model.model_json_schema()["properties"]
    return [
        {"name": name, "in": "query", "description": one.pop("description", ""), "schema": one}
        for name, one in properties.items()
    ]
