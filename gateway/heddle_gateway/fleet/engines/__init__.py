"""The engine families, one file each. The table's order is the order of asking: the most telling first."""

from heddle_gateway.fleet.engines.description import Engine
from heddle_gateway.fleet.engines.llamacpp import LlamaCppEngine
from heddle_gateway.fleet.engines.openai_compatible import OpenAICompatibleEngine
from heddle_gateway.fleet.engines.sglang import SGLangEngine
from heddle_gateway.fleet.engines.vllm import VLLMEngine
from heddle_gateway.fleet.features import EngineKind

ENGINES: dict[EngineKind, Engine] = {
    EngineKind.SGLANG: SGLangEngine(),
    EngineKind.VLLM: VLLMEngine(),
    EngineKind.LLAMACPP: LlamaCppEngine(),
    EngineKind.OPENAI: OpenAICompatibleEngine(),
}
