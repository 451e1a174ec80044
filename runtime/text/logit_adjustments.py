"""Changes to the logits that a request specifies: penalties for repeated tokens, biases and a minimum length.

They are applied in this order. c(i) is the number of times that token i was generated.

    logit_i += bias_i
    logit_i  = -inf                                            end-of-text tokens, before `min_tokens`
    logit_i  = logit_i / r if logit_i > 0 else logit_i r       r: repetition penalty; i in the prompt or generated
    logit_i -= frequency c(i) + presence [c(i) > 0]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class SamplingRules:
    """Changes to the logits before a token is chosen. The defaults change nothing.

    Args:
        repetition_penalty: Factor > 0. Values above 1 make tokens of the prompt and the generated text less likely.
        presence_penalty: Number that is subtracted from the logits of generated tokens.
        frequency_penalty: Number that is subtracted from the logit of a token for each time that it was generated.
        logit_bias: Numbers that are added to the logits, by token.
        min_tokens: Number of generated tokens before which `ends` are not chosen.
        ends: Tokens that end the text.
    """

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    ends: Sequence[int] = ()

    @property
    def are_neutral(self) -> bool:
        """Whether the rules change nothing."""
        penalties = self.repetition_penalty, self.presence_penalty, self.frequency_penalty
        return penalties == (1, 0, 0) and not any(self.logit_bias.values()) and not self.min_tokens


NO_RULES = SamplingRules()


class AdjustedLogits:
    """Changes the logits of one continuation. The changes depend on its tokens so far.

    Args:
        rules: Rules to apply.
        vocabulary: Number of tokens in the vocabulary.
        prompt: Tokens before the continuation.
    """

    def __init__(self, rules: SamplingRules, vocabulary: int, prompt: Sequence[int]) -> None:
        self._rules = rules
        self._is_seen = np.zeros(vocabulary, np.bool_)
        self._is_seen[list(prompt)] = True
        self._counts = np.zeros(vocabulary, np.int32)
        self._generated = 0
        self._biased = np.array(list(rules.logit_bias), np.int64)
        self._bias = np.array(list(rules.logit_bias.values()), np.float32)

    def add(self, token: int) -> None:
        """Count a generated token, for penalties and `min_tokens`."""
        self._is_seen[token] = True
        self._counts[token] += 1
        self._generated += 1

    def of(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the logits `[V]` after the changes of the rules."""
        rules, changed = self._rules, logits.copy()
        changed[self._biased] += self._bias
        if self._generated < rules.min_tokens:
            changed[list(rules.ends)] = -np.inf
        if rules.repetition_penalty != 1:
            penalty = np.float32(rules.repetition_penalty)
            changed = np.where(self._is_seen, np.where(changed > 0, changed / penalty, changed * penalty), changed)
        if rules.frequency_penalty or rules.presence_penalty:
            changed -= np.float32(rules.frequency_penalty) * self._counts.astype(np.float32)
            changed -= np.float32(rules.presence_penalty) * (self._counts > 0)
        return changed


def rules_bytes(vocabulary: int) -> int:
    """Return the number of bytes that an `AdjustedLogits` needs, including the changed logits."""
    return 16 * vocabulary
