import pytest
import torch
from transformers import DynamicCache, StaticCache

from .labels import FAMILIES, tiny

LABELS = [
    "EReg(SM(t)+ScFuFFN)",
    "SM+LN+G",
    "SM+FN+R",
    "SOTA:SM(t)+ScFFN",
    "SM(t)+ScFuFFN+C4",
    "SM+FN+R+D3",
    "SM+LN+R+S2",
]
PROMPT = torch.randint(1, 256, (2, 9), generator=torch.Generator().manual_seed(3))


def _varied(label, family="gpt2", **overrides):
    """A network whose positions and heads differ, so that a wrong position shows."""
    model = tiny(label, family, temperature_init=0.5, pad_token_id=0, **overrides)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
        model.train()(torch.randint(256, (4, 32)))
    return model.eval()


def _greedy(model, tokens, steps):
    """Generation without cache, masks or padding."""
    for _ in range(steps):
        with torch.no_grad():
            last = model(tokens, use_cache=False).logits[:, -1]
        tokens = torch.cat((tokens, last.argmax(-1, keepdim=True)), dim=1)
    return tokens


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("label", LABELS)
def test_greedy_generation_equals_repeated_forwards(label, family):
    model = _varied(label, family)
    generated = model.generate(PROMPT, max_new_tokens=12, do_sample=False)
    assert torch.equal(generated, _greedy(model, PROMPT, 12))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("label", LABELS)
def test_left_padding_changes_no_token(label, family):
    model = _varied(label, family)
    padded = torch.cat((torch.zeros(2, 4, dtype=torch.int64), PROMPT), dim=1)
    mask = (torch.arange(13) >= 4).long().expand(2, -1)
    generated = model.generate(padded, attention_mask=mask, max_new_tokens=8, do_sample=False)
    assert torch.equal(generated[:, 4:], _greedy(model, PROMPT, 8))


@pytest.mark.parametrize("label", LABELS)
def test_static_cache_generates_the_same(label):
    model = _varied(label)
    generated = model.generate(
        PROMPT,
        max_new_tokens=8,
        do_sample=False,
        cache_implementation="static",
        disable_compile=True,
    )
    assert torch.equal(generated, _greedy(model, PROMPT, 8))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("label", LABELS)
def test_cached_pieces_give_the_logits_of_the_whole(label, family):
    model = _varied(label, family)
    tokens = torch.randint(256, (2, 20))
    with torch.no_grad():
        whole = model(tokens)
        cache, logits, entropies = None, [], []
        for piece in tokens.split((7, 1, 5, 1, 6), dim=1):
            output = model(piece, cache=cache, use_cache=True)
            cache = output.past_key_values
            logits.append(output.logits)
            entropies.append(output.entropies[1])
    torch.testing.assert_close(torch.cat(logits, dim=1), whole.logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        torch.cat(entropies, dim=-1), whole.entropies[1], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("label", ["SM(t)+G", "SM(t)+G+C4", "SM+D3"])
def test_static_cache_counts_positions_without_position_ids(label):
    model = _varied(label)
    tokens = torch.randint(256, (2, 12))
    cache = StaticCache(config=model.config, max_cache_len=20)
    with torch.no_grad():
        whole = model(tokens).logits
        first = model(tokens[:, :8], cache=cache).logits
        pieces = [first] + [model(tokens[:, i : i + 1], cache=cache).logits for i in range(8, 12)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=1e-4, atol=1e-4)


def test_a_cache_that_keeps_no_inputs_of_a_convolution_is_refused():
    model = _varied("SM+R+C4")
    for cache in (DynamicCache(), DynamicCache(config=tiny("SM+R").config)):
        with pytest.raises(ValueError, match=r"room for its inputs; give DynamicCache\(config="):
            model(PROMPT, cache=cache)


def test_a_cache_has_one_of_two_names():
    model, cache = _varied("SM(t)+G"), DynamicCache()
    with torch.no_grad():
        first = model(PROMPT[:, :4], past_key_values=cache)
        second = model(PROMPT[:, 4:], past_key_values=cache)
        whole = model(PROMPT).logits
    assert first.past_key_values is cache and cache in first.values()
    torch.testing.assert_close(second.logits, whole[:, 4:], rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="give either cache or past_key_values, its former name"):
        model(PROMPT, cache=cache, past_key_values=cache)


@pytest.mark.parametrize("label", LABELS)
def test_beam_search_equals_beams_without_cache(label):
    model = _varied(label)
    arguments = {"num_beams": 3, "max_new_tokens": 8, "do_sample": False}
    cached = model.generate(PROMPT, **arguments)
    assert torch.equal(cached, model.generate(PROMPT, use_cache=False, **arguments))


@pytest.mark.parametrize("label", LABELS)
def test_assisted_decoding_equals_greedy(label):
    model, assistant = _varied(label), _varied("SM+ScFuFFN_i1")
    prompt = PROMPT[:1]
    generated = model.generate(
        prompt, assistant_model=assistant, max_new_tokens=10, do_sample=False
    )
    assert torch.equal(generated, _greedy(model, prompt, 10))


def test_entropies_of_generated_tokens_are_returned_on_request():
    output = _varied("SM(t)+G").generate(
        PROMPT,
        max_new_tokens=3,
        do_sample=False,
        output_attentions=True,
        return_dict_in_generate=True,
    )
    assert [tuple(step[0].shape) for step in output.attentions] == [(2, 2, 9), (2, 2, 1), (2, 2, 1)]


def test_logits_to_keep_computes_the_last_ones():
    model = _varied("SM+G")
    with torch.no_grad():
        whole = model(PROMPT).logits
        torch.testing.assert_close(model(PROMPT, logits_to_keep=2).logits, whole[:, -2:])
        picked = model(PROMPT, logits_to_keep=torch.tensor([1, 4])).logits
        torch.testing.assert_close(picked, whole[:, [1, 4]])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_trained_context_is_the_limit(family):
    model = _varied("SM+G", family)
    tokens = torch.randint(256, (1, 33))
    with pytest.raises(ValueError, match="position 32 lies beyond the trained context of 32"):
        model(tokens)
    cache = model(tokens[:, :32], use_cache=True).past_key_values
    with pytest.raises(ValueError, match="position 32 lies beyond"):
        model(tokens[:, 32:], cache=cache)
    with pytest.raises(ValueError, match="position 40 lies beyond"):
        model(tokens[:, :1], position_ids=torch.tensor([[40]]))


def test_tokens_must_come_one_way():
    with pytest.raises(ValueError, match="either input_ids or inputs_embeds"):
        tiny("SM")()
    model = _varied("SM+G")
    embeddings = model.get_input_embeddings()(PROMPT)
    torch.testing.assert_close(model(inputs_embeds=embeddings).logits, model(PROMPT).logits)


def test_packed_sequences_do_not_see_each_other():
    model = _varied("SM(t)+LN+G")
    tokens = torch.randint(256, (1, 10))
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5]])
    with torch.no_grad():
        packed = model(tokens, position_ids=positions, use_cache=False).logits
        parts = [model(part).logits for part in tokens.split((4, 6), dim=1)]
    torch.testing.assert_close(packed, torch.cat(parts, dim=1), rtol=1e-4, atol=1e-5)
