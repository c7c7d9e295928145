"""Request bodies to LLMRequest, and back with another model name."""

from epp.parsing.encoded_answers import DecodingReader, answer_decoder
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
from epp.parsing.intake import Intake, Reading, reader_finder
from epp.parsing.limits import (
    DEFAULT_MAX_BODY_BYTES,
    DEFAULT_MAX_JSON_VALUES,
    DEFAULT_MAX_RATIO,
    BodyLimits,
)
from epp.parsing.plugins import AnswerReader, HttpCall, Parser, Usage

__all__ = [
    "DEFAULT_MAX_BODY_BYTES",
    "DEFAULT_MAX_JSON_VALUES",
    "DEFAULT_MAX_RATIO",
    "AnswerReader",
    "BodyLimits",
    "BodyTooLongError",
    "CompressionRatioError",
    "Decoding",
    "DecodingReader",
    "FieldMissingError",
    "HttpCall",
    "Intake",
    "ModelMissingError",
    "NestedTooDeeplyError",
    "NoParserError",
    "NotJsonError",
    "ParseError",
    "Parser",
    "ParserFailedError",
    "Reading",
    "TooManyValuesError",
    "Usage",
    "answer_decoder",
    "reader_finder",
]
