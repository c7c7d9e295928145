"""Another model name in a body that is sent on."""

import json

import msgspec

from epp.parsing.errors import ParseError

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def rewrite_model(body: bytes, model: str) -> bytes:
    """Return ``body`` with the value of ``model`` replaced.

    Fields keep their order and their values every byte (numbers are not read and written again, so
    none loses digits). Of a field given twice the last value stays, which is the one that servers
    read, so no second ``model`` can pass.

    Raises:
        ParseError: The body is not a JSON object.
    """
    try:
        fields = _FIELDS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParseError(f"the model cannot be replaced in the request body: {error}") from None
    except RecursionError:
        raise ParseError("the request body is nested too deeply") from None
    fields["model"] = msgspec.Raw(_quoted(model))
    pieces: list[bytes | msgspec.Raw] = []
    for key, value in fields.items():
        pieces += (b",", _quoted(key), b":", value)
    pieces[0] = b"{"
    return b"".join((*pieces, b"}"))


def _quoted(text: str) -> bytes:
    # Not msgspec, which cannot write half of a surrogate pair; a name in the operator's YAML may be
    # one.
    return json.dumps(text).encode()
