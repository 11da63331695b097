"""What the server takes and answers, as pydantic models: they check, and the OpenAPI text is made of them."""

from pydantic import BaseModel, ConfigDict, Field

MOST_AT_ONCE = 100  # images in one answer
DEEPEST = 1000  # ranks that can be paged through


class Window(BaseModel):
    """Which part of a list is wanted."""

    model_config = ConfigDict(extra="forbid")

    offset: int = Field(0, ge=0, le=2**31 - 1, description="How many images to leave out at the start.")
    limit: int = Field(24, ge=1, le=MOST_AT_ONCE, description="How many images to return.")
    class_name: str | None = Field(None, alias="class", description="Only images of this class.")


class RowSearch(Window):
    """A search with an image of the gallery."""

    row: int = Field(ge=0, le=2**63 - 1, description="The number of the image in the gallery.")


class PhotoSearch(Window):
    """A search with a photo: the fields of a form beside the file `photo`."""


class Shown(BaseModel):
    """One image of the gallery."""

    row: int = Field(description="Its number; /api/images/{row}/thumbnail is its picture.")
    name: str = Field(description="Its path inside the data set.")
    class_name: str | None = Field(serialization_alias="class", description="Its class, where known.")


class Neighbour(Shown):
    """An image that was found."""

    rank: int = Field(description="1 is the nearest; counted within the class where one was asked for.")
    score: float = Field(description="Larger is closer.")


class SearchAnswer(BaseModel):
    """The neighbours of one image, nearest first."""

    query: Shown | None = Field(description="The image of the gallery that was searched with; null for a photo.")
    score: str = Field(description="What the scores are: cosine, dot or euclidean (minus the squared distance).")
    offset: int
    total: int = Field(
        description=f"How many can be paged through: {DEEPEST:,} at most; an approximate index may end sooner."
    )
    neighbours: list[Neighbour]


class ImagesAnswer(BaseModel):
    """A page of the gallery."""

    offset: int
    total: int = Field(description="Images of the gallery, or of the class asked for.")
    images: list[Shown]


class NamedClass(BaseModel):
    """A class and its size."""

    name: str
    images: int


class ClassesAnswer(BaseModel):
    """All classes of the gallery, by name; none where the index knows none."""

    classes: list[NamedClass]


class InfoAnswer(BaseModel):
    """What is served."""

    images: int
    classes: int
    score: str = Field(description="cosine, dot or euclidean.")
    model: str = Field(description="The model that embeds, without its folder.")
    index: str = Field(description="A line on what is searched, with what an approximate index was measured to find.")
    version: str = Field(description="The version of aurank.")
    most_neighbours: int = Field(description="How many neighbours of one image can be paged through.")
    max_upload_bytes: int
    max_pixels: int
    formats: list[str] = Field(description="Formats of photos that can be searched with.")


class ErrorAnswer(BaseModel):
    """Why a request was refused."""

    error: str = Field(description="One line: what is wrong, and what to do.")
