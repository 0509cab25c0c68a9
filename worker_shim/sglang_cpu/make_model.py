"""Makes a tiny random Qwen3 (0.56 M parameters) with its own tokenizer: ``python make_model.py FOLDER``.

Two layers, 4 heads, 2 KV heads, float32, context 32,768. Nothing is downloaded.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import launch  # noqa: F401  before transformers, which looks for the same kernels
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 2048
CONTEXT = 32768
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

out = sys.argv[1]
sources = [path.read_text(errors="ignore") for path in sorted(Path(os.__file__).parent.glob("*.py"))[:120]]
trained = Tokenizer(models.BPE())
trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
trained.decoder = decoders.ByteLevel()
trained.train_from_iterator(
    sources,
    trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    ),
)
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=trained, eos_token="<|im_end|>", pad_token="<|endoftext|>"
)
tokenizer.chat_template = TEMPLATE
tokenizer.model_max_length = CONTEXT

torch.manual_seed(0)
model = Qwen3ForCausalLM(
    Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
        torch_dtype="float32",
    )
)
model.generation_config.eos_token_id = 2
model.save_pretrained(out)
tokenizer.save_pretrained(out)
