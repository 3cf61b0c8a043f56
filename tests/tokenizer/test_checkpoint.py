"""Public checkpoint files become folders; files that are not what they should be are refused, and nothing is left."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cyclegrpo.errors import DataError
from cyclegrpo.tokenizer import MaskTokenizer, checkpoint
from cyclegrpo.tokenizer.checkpoint import convert_checkpoint, read_checkpoint
from cyclegrpo.tokenizer.config import SAM2_SIZES, sam2_config
from cyclegrpo.tokenizer.convert import REFERENCE_PREFIX, without_prefix
from cyclegrpo.tokenizer.folder import CONVERSION_FILE, load_mask_tokenizer, read_info
from tests.tokenizer.test_convert import public_state_dict

PATCHES = f"{REFERENCE_PREFIX}image_encoder.trunk.patch_embed.proj.bias"


@pytest.fixture(scope="module")
def tokenizer(tiny_config) -> MaskTokenizer:
    torch.manual_seed(0)
    tokenizer = MaskTokenizer(tiny_config).eval()
    positions = tokenizer.sam2.prompt_encoder.shared_embedding.positional_embedding
    tokenizer.sam2.shared_image_embedding.positional_embedding.copy_(positions)
    return tokenizer


@pytest.fixture(scope="module")
def public(tokenizer) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in public_state_dict(tokenizer).items()}


def same_weights(folder: Path, tokenizer: MaskTokenizer) -> bool:
    loaded = MaskTokenizer.from_pretrained(folder).state_dict()
    expected = tokenizer.state_dict()
    return loaded.keys() == expected.keys() and all(torch.equal(loaded[name], expected[name]) for name in loaded)


@pytest.mark.parametrize("name", ["a.pth", "a.safetensors", "wrapped.pt"])
def test_a_file_becomes_a_folder_with_the_same_weights(name, public, tokenizer, tmp_path):
    file = tmp_path / name
    if file.suffix == ".safetensors":
        save_file(public, file)
    else:
        torch.save({"state_dict": public} if name == "wrapped.pt" else public, file)
    report = convert_checkpoint(file, tmp_path / "out", config=tokenizer.config)
    assert same_weights(tmp_path / "out", tokenizer)
    assert report.num_kept + report.num_dropped == report.num_keys == len(public)
    assert report.dropped == {
        "cluster_size_ema": 2,
        "embed_ema": 2,
        "maskmem_tpos_enc": 1,
        "memory_encoder": 1,
        "no_obj_ptr": 1,
        "obj_ptr_proj": 1,
    }
    info = read_info(tmp_path / "out")
    assert (info.image_size, info.embed_dim, info.codebooks, info.stored_as) == (64, 32, "2 x 16", "F32")
    assert info.num_values == report.num_values and info.made_from == name


def test_a_conversion_replaces_an_earlier_one_but_no_other_folder(public, tokenizer, tmp_path):
    torch.save(public, tmp_path / "a.pth")
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="holds other files"):
        convert_checkpoint(tmp_path / "a.pth", out, config=tokenizer.config)
    assert [path.name for path in out.iterdir()] == ["notes.txt"]
    (out / "notes.txt").unlink()
    for _ in range(2):
        convert_checkpoint(tmp_path / "a.pth", out, config=tokenizer.config)
    assert same_weights(out, tokenizer)


def test_what_the_mask_tokenizer_lacks_comes_from_sam2(public, tokenizer, tmp_path):
    halves = {True: {}, False: {}}
    for name, tensor in public.items():
        halves["image_encoder" in name][name.removeprefix(REFERENCE_PREFIX)] = tensor
    torch.save({"model": {**halves[True], "no_mem_embed": torch.zeros(1, 1, 32)}}, tmp_path / "sam2.pt")
    torch.save(halves[False], tmp_path / "mask.pth")
    convert_checkpoint(tmp_path / "mask.pth", tmp_path / "out", sam2=tmp_path / "sam2.pt", config=tokenizer.config)
    assert same_weights(tmp_path / "out", tokenizer)  # the mask tokenizer's own no_mem_embed counts
    with pytest.raises(DataError, match=r"mask\.pth: .*missing: sam2\.vision_encoder"):
        convert_checkpoint(tmp_path / "mask.pth", tmp_path / "other", config=tokenizer.config)
    assert not (tmp_path / "other").exists()


def test_a_sam2_checkpoint_that_adds_nothing_is_refused(public, tokenizer, tmp_path):
    torch.save(public, tmp_path / "mask.pth")
    torch.save({"no_mem_embed": torch.zeros(1, 1, 32), "memory_encoder.x": torch.zeros(1)}, tmp_path / "sam2.pt")
    with pytest.raises(DataError, match=r"sam2\.pt: holds no weight that .*mask\.pth lacks"):
        convert_checkpoint(tmp_path / "mask.pth", tmp_path / "out", sam2=tmp_path / "sam2.pt", config=tokenizer.config)


def test_points_that_stand_upright_are_refused(public, tokenizer, tmp_path):
    upright = {name: tensor.T if "point_embeddings" in name else tensor for name, tensor in public.items()}
    torch.save(upright, tmp_path / "a.pth")
    with pytest.raises(DataError, match=r"missing: sam2\.prompt_encoder\.point_embed\.weight"):
        convert_checkpoint(tmp_path / "a.pth", tmp_path / "out", config=tokenizer.config)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"files": 3}'])
def test_a_damaged_record_of_the_conversion_is_told(content, public, tokenizer, tmp_path):
    torch.save(public, tmp_path / "a.pth")
    convert_checkpoint(tmp_path / "a.pth", tmp_path / "out", config=tokenizer.config)
    (tmp_path / "out" / CONVERSION_FILE).write_text(content)
    with pytest.raises(DataError, match=rf"{CONVERSION_FILE}: does not say what was converted"):
        read_info(tmp_path / "out")


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_pickled_code_is_not_run(tmp_path):
    torch.save({"a": Payload(tmp_path / "run")}, tmp_path / "bad.pth")
    (tmp_path / "plain.pth").write_bytes(pickle.dumps(Payload(tmp_path / "run")))
    for name in ("bad.pth", "plain.pth"):
        with pytest.raises(DataError, match=r"\.pth: cannot be read as weights alone"):
            read_checkpoint(tmp_path / name)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["a.pth", "a.safetensors"])
def test_files_that_are_no_checkpoint_are_refused_by_name(name, public, tmp_path):
    file = tmp_path / name
    with pytest.raises(DataError, match="no such file"):
        read_checkpoint(file)
    torch.save(public, file) if name == "a.pth" else save_file(public, file)
    whole = file.read_bytes()
    for damaged in (b"", b"hello", whole[:1000], whole[: len(whole) // 2]):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match="cannot be read as weights alone") as caught:
            read_checkpoint(file)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "holds dict without tensors"),
        ([torch.zeros(1)], "holds list without tensors"),
        (
            {"a": torch.zeros(1), "epoch": 3},
            "1 names hold no plain tensor .*, the first is 'epoch'",
        ),
        ({"a": torch.zeros(1), 3: torch.zeros(1)}, "the first is 3"),
        ({"a": torch.zeros(2, dtype=torch.complex64)}, "the first is 'a'"),
        ({"a": torch.zeros(2, dtype=torch.int32)}, "the first is 'a'"),
        ({"a": torch.zeros(2).to_sparse()}, "the first is 'a'"),
        ({"model": 3, "a": torch.zeros(1)}, "the first is 'model'"),
    ],
)
def test_what_holds_no_weights_is_refused(content, message, tmp_path):
    torch.save(content, tmp_path / "a.pth")
    with pytest.raises(DataError, match=message):
        read_checkpoint(tmp_path / "a.pth")


def test_whole_numbers_are_refused_in_safetensors_too(tmp_path):
    save_file({"a": torch.zeros(2, dtype=torch.int8)}, tmp_path / "a.safetensors")
    with pytest.raises(DataError, match="the first is 'a'"):
        read_checkpoint(tmp_path / "a.safetensors")


def test_a_mapping_that_holds_itself_ends(tmp_path):
    loop: dict = {"a": torch.zeros(1)}
    loop["model"] = loop
    torch.save(loop, tmp_path / "a.pth")
    with pytest.raises(DataError, match="the first is 'model'"):
        read_checkpoint(tmp_path / "a.pth")


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("quantizer.codebooks.0.weight", torch.tensor(1.0), r"shape \(\), expected \(16, 32\): codebooks\.0"),
        ("sam_prompt_encoder.point_embeddings.3.weight", torch.zeros(1, 5), r"missing: .*point_embed"),
        ("sam_mask_encoder.mask_tokens.weight", torch.tensor(1.0), r"shape \(\), expected"),
        ("concate_mask_embeds.0.weight", torch.zeros(2, 2), r"several mask tokens .*concate_mask_embeds"),
    ],
)
def test_odd_shapes_are_told_by_name(name, tensor, message, public, tokenizer, tmp_path):
    prefix = "" if name.startswith("concate") else REFERENCE_PREFIX
    key = next((key for key in public if key.endswith(name)), f"{prefix}{name}")
    torch.save({**public, key: tensor}, tmp_path / "a.pth")
    with pytest.raises(DataError, match=rf"a\.pth: .*{message}"):
        convert_checkpoint(tmp_path / "a.pth", tmp_path / "out", config=tokenizer.config)


def test_several_mask_tokens_are_refused_before_any_size(public, tmp_path):
    torch.save({**public, "concate_mask_embeds.0.weight": torch.zeros(1)}, tmp_path / "a.pth")
    with pytest.raises(DataError, match="several mask tokens"):
        convert_checkpoint(tmp_path / "a.pth", tmp_path / "out")


def test_a_weight_given_twice_is_refused(public, tokenizer, tmp_path):
    torch.save({**public, "no_mem_embed": torch.zeros(1, 1, 32)}, tmp_path / "a.pth")
    with pytest.raises(DataError, match="no_mem_embed is there with and without its prefix"):
        convert_checkpoint(tmp_path / "a.pth", tmp_path / "out", config=tokenizer.config)


def test_what_a_killed_conversion_left_is_removed_and_a_link_stays(public, tokenizer, tmp_path):
    torch.save(public, tmp_path / "a.pth")
    (tmp_path / "disk" / "out").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "out")
    (tmp_path / "disk" / ".out.0123abcd.tmp").mkdir()
    convert_checkpoint(tmp_path / "a.pth", tmp_path / "link", config=tokenizer.config)
    assert (tmp_path / "link").is_symlink() and same_weights(tmp_path / "disk" / "out", tokenizer)
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["out"]
    modes = {path.stat().st_mode for path in (tmp_path / "disk" / "out").iterdir()}
    assert len(modes) == 1


def test_the_folder_that_it_runs_in_is_not_replaced(public, tokenizer, tmp_path, monkeypatch):
    torch.save(public, tmp_path / "a.pth")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(DataError, match="the folder that this runs in"):
        convert_checkpoint(tmp_path / "a.pth", Path(), config=tokenizer.config)


def test_nan_is_refused(public, tokenizer, tmp_path):
    torch.save({**public, PATCHES: torch.full_like(public[PATCHES], torch.nan)}, tmp_path / "a.pth")
    with pytest.raises(DataError, match=r"NaN or infinity in 1 tensors: sam2\.vision_encoder"):
        convert_checkpoint(tmp_path / "a.pth", tmp_path / "out", config=tokenizer.config)


@pytest.mark.parametrize("size", SAM2_SIZES)
def test_the_published_sizes_are_recognised(size):
    with torch.device("meta"):
        public = public_state_dict(MaskTokenizer(sam2_config(size)))
    found, config = checkpoint._published_config({without_prefix(name): tensor for name, tensor in public.items()})
    assert found == size and config.to_dict() == sam2_config(size).to_dict()


def test_an_unknown_size_is_named(public, tmp_path):
    torch.save(public, tmp_path / "a.pth")
    with pytest.raises(DataError, match=r"an image encoder of 8 channels and 5 blocks; expected tiny \(96 channels"):
        convert_checkpoint(tmp_path / "a.pth", tmp_path / "out")
    torch.save({"a": torch.zeros(1)}, tmp_path / "a.pth")
    with pytest.raises(DataError, match="no image encoder"):
        convert_checkpoint(tmp_path / "a.pth", tmp_path / "out")


def test_a_folder_whose_weights_are_not_its_configs_is_refused(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "a")
    assert read_info(tmp_path / "a").made_from is None
    assert torch.equal(load_mask_tokenizer(tmp_path / "a").codebooks[1], tokenizer.codebooks[1])
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    (tmp_path / "a" / "config.json").write_text(json.dumps({**config, "codebook_size": 8}))
    for look in (read_info, load_mask_tokenizer):
        with pytest.raises(DataError, match=r"2 weights do not fit config\.json: codebooks\.0, codebooks\.1"):
            look(tmp_path / "a")
    (tmp_path / "a" / "model.safetensors").write_bytes(b"x")
    with pytest.raises(DataError, match="no whole safetensors file"):
        read_info(tmp_path / "a")
    (tmp_path / "a" / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"holds no \.safetensors file"):
        read_info(tmp_path / "a")
    with pytest.raises(DataError, match=r"config\.json is missing"):
        read_info(tmp_path)
    assert not (tmp_path / "a" / CONVERSION_FILE).exists()


def test_a_folder_without_some_weights_is_refused_where_it_would_be_used(tokenizer, tmp_path):
    """transformers alone would fill them with random numbers."""
    tokenizer.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["codebooks.1"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"1 weights do not fit config\.json: codebooks\.1"):
        load_mask_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("[]", "no config of a model"),
        ("{", "no config of a model"),
        ('{"model_type": "qwen3_vl"}', r"holds another model \(qwen3_vl\); expected a mask tokenizer"),
        ('{"model_type": "samtok", "codebook_size": "many"}', "no config of a mask tokenizer"),
    ],
)
def test_a_config_that_is_none_is_refused(config, message, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(DataError, match=message) as caught:
        load_mask_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)
