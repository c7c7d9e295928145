"""Parses request bodies into LLMRequest, and replaces the model name in them."""

from epp.parsing.encoded_responses import DecodingReader, response_decoder
from epp.parsing.encoding import Decoding
from epp.parsing.errors import (
    BodyTooLongError,
    CompressionRatioError,
    FieldMissingError,
    ModelMissingError,
    NestedTooDeeplyError,
    NoParserError,
    NotJsonError,
    ParseError,
    ParserFailedError,
    TooManyValuesError,
)
from epp.parsing.limits import (
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    DEFAULT_MAX_JSON_VALUES,
    DEFAULT_MAX_RATIO,
    BodyLimits,
)
from epp.parsing.plugins import HttpCall, Parser, ResponseReader, Usage
from epp.parsing.request_parsing import ParsedRequest, RequestParser, reader_finder

__all__ = [
    "DEFAULT_MAX_DECOMPRESSED_BYTES",
    "DEFAULT_MAX_JSON_VALUES",
    "DEFAULT_MAX_RATIO",
    "BodyLimits",
    "BodyTooLongError",
    "CompressionRatioError",
    "Decoding",
    "DecodingReader",
    "FieldMissingError",
    "HttpCall",
    "ModelMissingError",
    "NestedTooDeeplyError",
    "NoParserError",
    "NotJsonError",
    "ParseError",
    "ParsedRequest",
    "Parser",
    "ParserFailedError",
    "RequestParser",
    "ResponseReader",
    "TooManyValuesError",
    "Usage",
    "reader_finder",
    "response_decoder",
]
