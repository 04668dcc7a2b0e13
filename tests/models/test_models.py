"""One contract for all models, and what each has of its own."""

import copy
import inspect

import pytest
import torch
from hypothesis import given, settings, strategies as st

from neuralfunctionals import NetworkSpec, WeightSpaceFeatures, kernels, models, native
from neuralfunctionals.testing import assert_equivariant, assert_invariant, random_features
from neuralfunctionals.weight_space import Activation
from operators import operators
from strategies import network_specs

NFT = {"channels": 16, "num_blocks": 1, "hidden_channels": 16, "num_heads": 4, "num_latents": 3, "latent_channels": 4}
SPATIAL = {"channels": [4], "num_frequencies": 2, "grid_size": 3, "latent_channels": 4, "num_heads": 2}
ARRAY = {k: NFT[k] for k in ("channels", "num_blocks", "hidden_channels", "num_heads", "latent_channels")}
ARRAY |= {"grid_size": 2, "decoder_channels": 5}


def sines(spec, omega=2.0):
    return spec.with_activation(Activation("sine", omega))


EQUIVARIANT = {
    "NFT": lambda spec: models.NFT(spec, **NFT),
    "NFT NP": lambda spec: models.NFT(spec, io_encoding=False, **NFT),
    "NFT HNP": lambda spec: models.NFT(spec, symmetry="HNP", mlp="shared", **NFT),
    "NFT full": lambda spec: models.NFT(spec, global_term="full", **NFT),
    "NFT with states": lambda spec: models.NFT(spec, neuron_states=2, state_channels=16, state_frequencies=2, **NFT),
    "NFT HNP with states": lambda spec: models.NFT(
        spec, neuron_states=1, state_channels=16, symmetry="HNP", io_encoding=False, **NFT
    ),
    "NFN NP": lambda spec: models.NFN(spec, channels=(3, 3)),
    "NFN HNP": lambda spec: models.NFN(spec, symmetry="HNP", channels=(4, 4), residual=True),
    "DWSNet": lambda spec: models.DWSNet(spec, channels=3, num_layers=2),
    "NeuronGraphNet": lambda spec: models.NeuronGraphNet(sines(spec, 3.0), channels=16, num_rounds=2, rank=2),
    "NeuronGraphNet NP": lambda spec: models.NeuronGraphNet(
        spec, channels=16, num_rounds=3, symmetry="NP", num_gates=2, num_frequencies=2
    ),
}
INVARIANT = {
    "NFT latents": lambda spec: models.NFT(spec, pooling="latents", **NFT),
    "NFT cross": lambda spec: models.NFT(spec, pooling="cross_attention", head_channels=[5], **NFT),
    "NFT NP pool": lambda spec: models.NFT(spec, pooling="NP", io_encoding=False, head_channels=[5], **NFT),
    "NFT HNP pool": lambda spec: models.NFT(spec, pooling="HNP", symmetry="HNP", head_channels=[5], **NFT),
    "NFN NP pool": lambda spec: models.NFN(spec, channels=(3,), io_encoding="none", pooling="NP", head_channels=[4]),
    "NFN HNP pool": lambda spec: models.NFN(spec, channels=(3, 3), num_frequencies=2, pooling="HNP", head_channels=[4]),
    "DWSNet": lambda spec: models.DWSNet(spec, channels=3, num_layers=2, invariant=True, out_channels=2),
    "DWSNet normalized": lambda spec: models.DWSNet(
        spec, channels=3, num_layers=2, invariant=True, standardize=True, batch_norm=True
    ),
    "NeuronGraphNet vector": lambda spec: models.NeuronGraphNet(spec, channels=16, pooling="vector", head_channels=[5]),
    "NeuronGraphNet latents": lambda spec: models.NeuronGraphNet(
        spec, channels=16, pooling="latents", num_latents=3, latent_channels=4, pool_channels=6, head_channels=[5]
    ),
    "NeuronGraphNet picture": lambda spec: models.NeuronGraphNet(
        spec,
        channels=16,
        pooling="vector",
        pool_channels=6,
        head_channels=[5],
        picture_size=3,
        out_channels=2 + 9 * spec.widths[-1],
    ),
    "NFT standardized": lambda spec: models.NFT(spec, pooling="NP", standardize=True, head_channels=[5], **NFT),
    "StatNN": lambda spec: models.StatNN(spec, head_channels=[4]),
    "StatNN standardized": lambda spec: models.StatNN(spec, standardize=True, head_channels=[4]),
    "SpatialNFN": lambda spec: models.SpatialNFN(spec, **SPATIAL),
    "SpatialNFN standardized": lambda spec: models.SpatialNFN(spec, standardize=True, **SPATIAL),
}
AUTOENCODERS = {
    "Inr2Array": lambda spec: models.Inr2Array(spec, **ARRAY),
    "Inr2Array NFN": lambda spec: models.Inr2Array(spec, encoder="nfn", **ARRAY),
    "Inr2Array graph": lambda spec: models.Inr2Array(
        spec, encoder="neuron-graph", state_frequencies=2, pool_channels=6, head_channels=5, **ARRAY
    ),
    "Inr2Array joint": lambda spec: models.Inr2Array(spec, decoder="joint", **ARRAY),
}
ASKING = {
    "NFT probes": lambda spec: models.NFT(sines(spec), probes=3, state_channels=16, **NFT),
    "NFT states and probes": lambda spec: models.NFT(
        sines(spec), probes=3, neuron_states=1, state_channels=16, pooling="HNP", head_channels=[5], **NFT
    ),
    "NeuronGraphNet probes": lambda spec: models.NeuronGraphNet(sines(spec), channels=16, probes=3),
    "NeuronGraphNet vector, probes": lambda spec: models.NeuronGraphNet(
        sines(spec), channels=16, probes=3, pooling="vector", head_channels=[5]
    ),
    "ProbeCNN": lambda spec: models.ProbeCNN(sines(spec), out_channels=2, grid_size=3, channels=2, derivatives=True),
    "RenderCNN": lambda spec: models.RenderCNN(sines(spec), out_channels=2, image_size=8, channels=2),
}
"""Models that also run the networks: sine networks only."""
ON_WEIGHTS = {**{f"{k} (equivariant)": v for k, v in EQUIVARIANT.items()}, **INVARIANT, **AUTOENCODERS}
SPECS = [NetworkSpec.mlp([2, 3, 3, 1]), NetworkSpec.cnn([1, 3, 2], (2, 2), dense=[2])]


def latent_classifier():
    return models.LatentClassifier(4, 6, 3, channels=8, num_blocks=2, num_heads=2, hidden_channels=9)


def test_every_public_model_is_checked_here():
    makers = [*ON_WEIGHTS.values(), *ASKING.values()]
    checked = {type(make(SPECS[0])).__name__ for make in makers} | {"LatentClassifier", "Canonical"}
    assert checked | {"Pretrained", "from_pretrained", "league"} == set(models.__all__)


def test_leagues_follow_from_the_model():
    assert {models.league(make(SPECS[0])) for make in ON_WEIGHTS.values()} == {"weights only"}
    assert {models.league(make(SPECS[0])) for make in ASKING.values()} == {"asks the function"}
    spec = sines(SPECS[0])
    array = models.Inr2Array(spec, encoder="neuron-graph", probes=2, canonical=spec.symmetry, **ARRAY)
    assert models.league(array) == "asks the function"


@pytest.mark.skipif(native.find_compiler() is None, reason="no C++ compiler here")
@pytest.mark.parametrize("name", [*ON_WEIGHTS, *ASKING])
def test_plain_and_compiled_kernels_agree(name):
    model = {**ON_WEIGHTS, **ASKING}[name](SPECS[0])
    features = random_features(SPECS[0], dtype=torch.float32)
    parameters = [p for p in model.parameters() if p.requires_grad]

    def compute():
        torch.manual_seed(0)
        y = as_tensor(model(features))
        return [y, *torch.autograd.grad(y.sin().sum(), parameters)]

    with operators() as called:
        found = compute()
    with kernels.use("plain"):
        expected = compute()
    for mine, plain in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-3, atol=1e-4 * max(1, plain.abs().max().item()))
    uses_compiled = name.startswith(("NFT", "NeuronGraphNet", "Inr2Array")) and name != "Inr2Array NFN"
    assert bool(called) == uses_compiled


@pytest.mark.parametrize("name", ASKING)
@settings(max_examples=8, deadline=None)
@given(widths=st.lists(st.integers(1, 4), min_size=1, max_size=3), seed=st.integers(0, 100))
def test_models_that_ask_keep_the_symmetry(name, widths, seed):
    model = ASKING[name](NetworkSpec.mlp([2, *widths, 1])).double().eval()
    check = (
        assert_equivariant if isinstance(model(random_features(model.spec)), WeightSpaceFeatures) else assert_invariant
    )
    check(model, seed=seed, trials=2)


@pytest.mark.parametrize("name", ASKING)
def test_models_that_ask_train_save_and_load(name, tmp_path):
    model = ASKING[name](SPECS[0])
    features = random_features(SPECS[0], dtype=torch.float32)
    as_tensor(model(features)).square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    model.eval().save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(as_tensor(loaded(features)), as_tensor(model(features)))


@pytest.mark.parametrize("name", EQUIVARIANT)
@settings(max_examples=8)
@given(spec=network_specs(), seed=st.integers(0, 100))
def test_equivariant_in_both_precisions(name, spec, seed):
    model = EQUIVARIANT[name](spec)
    assert_equivariant(model, seed=seed, trials=2)
    assert_equivariant(model.double(), seed=seed, trials=2)


@pytest.mark.parametrize("name", INVARIANT)
@settings(max_examples=8)
@given(spec=network_specs(), seed=st.integers(0, 100))
def test_invariant_in_both_precisions(name, spec, seed):
    model = INVARIANT[name](spec)
    assert_invariant(model, seed=seed, trials=2)
    assert_invariant(model.double(), seed=seed, trials=2)


@pytest.mark.parametrize("name", AUTOENCODERS)
@settings(max_examples=8)
@given(spec=network_specs())
def test_latents_are_invariant(name, spec):
    class Encoder(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model, self.spec, self.in_channels, self.symmetry = model, spec, 1, model.symmetry

        def forward(self, features):
            return self.model.encode(features)

    encoder = Encoder(AUTOENCODERS[name](spec))
    assert_invariant(encoder, trials=2)
    assert_invariant(encoder.double(), trials=2)


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("name", ON_WEIGHTS)
def test_trains_copies_saves_and_loads(name, spec, tmp_path):
    model = ON_WEIGHTS[name](spec)
    features = random_features(spec, dtype=torch.float32)
    output = as_tensor(model(features))
    output.square().mean().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
    model.eval()
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert loaded.spec == spec
    other = ON_WEIGHTS[name](spec)
    other.load_state_dict(model.state_dict())
    expected = as_tensor(model(features))
    for same in (loaded, other.eval(), copy.deepcopy(model)):
        assert torch.equal(as_tensor(same(features)), expected)


@pytest.mark.parametrize("name", ON_WEIGHTS)
def test_autocast_to_bfloat16_stays_close(name):
    model = ON_WEIGHTS[name](SPECS[0]).eval()
    features = random_features(SPECS[0], dtype=torch.float32)
    expected = as_tensor(model(features))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = as_tensor(model(features))
    assert (output.float() - expected).abs().max() < 0.1 * expected.abs().max().clamp(min=1)


@pytest.mark.parametrize("name", ON_WEIGHTS)
def test_refuses_other_networks(name):
    with pytest.raises(ValueError, match=r"expected networks 2->3, 3->3, 3->1 but received 5->5"):
        ON_WEIGHTS[name](SPECS[0])(random_features(NetworkSpec.mlp([5, 5]), dtype=torch.float32))


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_statnn_reads_empty_batches_and_half_precision(standardize, dtype):
    model = models.StatNN(SPECS[0], standardize=standardize, head_channels=[4], out_channels=3)
    features = random_features(SPECS[0], dtype=torch.float32)
    expected = model(features)
    model.to(dtype)
    output = model(features.to(dtype))
    assert output.dtype == dtype
    torch.testing.assert_close(output.float(), expected, atol=0.05, rtol=0.05)
    assert model(features[[]].to(dtype)).shape == (0, 3)
    with pytest.raises(ValueError, match="StatNN expected networks|StatFeatures expected|Standardize expected"):
        model(random_features(NetworkSpec.mlp([5, 5]), dtype=dtype, batch=0))


def as_tensor(output):
    return output.tensor if isinstance(output, WeightSpaceFeatures) else output


SIREN = NetworkSpec.mlp([2, 32, 32, 1])
SMALL_CNN = NetworkSpec.cnn([1, 16, 16, 16], (3, 3), dense=[10])


@pytest.mark.parametrize(
    ("make", "millions", "tolerance"),
    [
        (lambda: models.NFT.editing(SIREN), 7, 0.03),
        (lambda: models.Inr2Array.paper(SIREN), 22, 0.03),
        (lambda: models.NFT.generalization(SMALL_CNN), 46, 0.05),
    ],
    ids=["editing", "Inr2Array", "generalization"],
)
def test_the_papers_models_have_the_papers_number_of_parameters(make, millions, tolerance):
    with torch.device("meta"):
        model = make()
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert abs(count / 1e6 - millions) <= tolerance * millions


@pytest.mark.parametrize(
    ("make", "num_parameters", "dropout"),
    [
        (lambda: models.NFT(SIREN), 7_130_892, {0}),
        (lambda: models.NFT.editing(SIREN), 7_130_892, {0.1}),
        (lambda: models.NFT.editing(SIREN, symmetry="HNP"), 9_499_404, {0.1}),
        (lambda: models.NFT.editing(SIREN, neuron_states=2), 7_450_125, {0.1}),
        (lambda: models.NFT.generalization(SMALL_CNN), 45_638_905, {0.1}),
        (lambda: models.NFN.editing(SIREN), 2_152_972, {0}),
        (lambda: models.NFN.editing(SIREN, "HNP"), 2_479_501, {0}),
        (lambda: models.NFN.classification(SIREN), 45_650_218, {0, 0.5}),
        (lambda: models.NFN.generalization(SMALL_CNN, "HNP"), 2_586_819, {0}),
        (lambda: models.DWSNet(SIREN), 236_103, {0}),
        (lambda: models.DWSNet.classification(SIREN), 237_482, {0}),
        (lambda: models.StatNN(SIREN), 1_045_001, {0}),
        (lambda: models.SpatialNFN(SIREN), 41_662_474, {0.1}),
        (lambda: models.ProbeCNN(SIREN), 125_372, {0.1}),
        (lambda: models.ProbeCNN(SIREN, derivatives=True), 125_948, {0.1}),
        (lambda: models.RenderCNN(SIREN), 29_290, {0.3}),
        (lambda: models.LatentClassifier(), 38_237_194, {0, 0.1}),
        (lambda: models.NeuronGraphNet.editing(SIREN), 387_548, {0}),
        (lambda: models.NeuronGraphNet.classification(SIREN), 406_169, {0}),
        (lambda: models.NeuronGraphNet.classification(SIREN, out_channels=206, picture_size=14), 669_245, {0}),
        (lambda: models.NeuronGraphNet.generalization(SMALL_CNN), 698_613, {0.1}),
        (lambda: models.Inr2Array(SIREN, encoder="nfn"), 31_140_489, {0}),
        (lambda: models.Inr2Array(SIREN, encoder="neuron-graph"), 13_538_224, {0}),
        (lambda: models.Inr2Array(SIREN, encoder="neuron-graph", head_channels=100), 8_799_952, {0}),
    ],
)
def test_configurations_keep_their_size_and_dropout(make, num_parameters, dropout):
    with torch.device("meta"):
        model = make()
    assert sum(p.numel() for p in model.parameters()) == num_parameters
    assert {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)} == dropout


DEFAULTS = {
    "DWSNet": {"channels": 32, "num_layers": 4, "reduction": "max", "in_channels": 1, "out_channels": 1},
    "Inr2Array": {"encoder": "nft", "grid_size": 4, "latent_channels": 256, "channels": 256, "num_blocks": 6}
    | {"hidden_channels": 1024, "num_heads": 4, "fourier_scale": 3.0, "state_channels": 64, "decoder": "separate"}
    | {"latent_mlp": True, "decoder_channels": 256},
    "LatentClassifier": {"num_latents": 16, "latent_channels": 256, "num_classes": 10, "channels": 512}
    | {"num_blocks": 12, "num_heads": 4, "hidden_channels": 2048, "dropout": 0.1},
    "NFN": {"symmetry": "NP", "in_channels": 1, "out_channels": 1, "channels": (128, 128, 128), "fourier_scale": 3.0}
    | {"head_channels": (1000, 1000), "output_scale": 0.01},
    "NFT": {"in_channels": 1, "out_channels": 1, "channels": 256, "num_blocks": 4, "hidden_channels": 512}
    | {"num_heads": 8, "fourier_scale": 3.0, "symmetry": "NP", "io_encoding": True, "global_term": "reduced"}
    | {"mlp": "per_layer", "state_channels": 64, "num_latents": 16, "latent_channels": 256}
    | {"head_channels": (1000, 1000), "output_scale": 0.01},
    "NeuronGraphNet": {"in_channels": 1, "out_channels": 1, "channels": 64, "num_rounds": 5, "symmetry": "HNP"}
    | {"fourier_scale": 0.5, "num_latents": 16, "latent_channels": 64, "entry_channels": 64, "rank": 32}
    | {"output_scale": 0.1},
    "ProbeCNN": {"out_channels": 10, "grid_size": 11, "channels": 32, "dropout": 0.1},
    "RenderCNN": {"out_channels": 10, "image_size": 28, "channels": 16, "dropout": 0.3},
    "SpatialNFN": {"in_channels": 1, "out_channels": 10, "channels": (512, 512, 512), "num_frequencies": 128}
    | {"fourier_scale": 3.0, "grid_size": 8, "latent_channels": 128, "num_latent_blocks": 2, "num_heads": 4}
    | {"convolution_channels": 64, "dropout": 0.1},
    "StatNN": {"in_channels": 1, "out_channels": 1, "head_channels": (1000, 1000)},
}
"""Defaults other than 0, False and None: those of the papers, on which saved configs and recipes rely."""


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_those_of_the_papers(name):
    parameters = inspect.signature(getattr(models, name)).parameters.values()
    given = {p.name: p.default for p in parameters if p.default is not p.empty}
    assert {k: v for k, v in given.items() if v not in (0, None, ())} == DEFAULTS[name]


def test_a_fresh_editor_hardly_changes_a_network():
    features = 0.1 * random_features(SIREN, dtype=torch.float32)
    delta = models.NFT(SIREN, channels=16, hidden_channels=16, num_heads=2)(features)
    assert delta.tensor.abs().max() < 0.1


def test_decoded_networks_stand_in_the_order_of_items_and_patches():
    model = models.Inr2Array(SPECS[0], **ARRAY).eval()
    latents = torch.randn(3, 4, 4)
    decoded = model.decode(latents)
    assert len(decoded) == 3 * 4
    assert decoded.spec == SPECS[0]
    one = model.decode(latents[1:2])
    torch.testing.assert_close(decoded[list(range(4, 8))].tensor, one.tensor)


def test_latent_classifier_reads_sequences(tmp_path):
    model = latent_classifier().eval()
    latents = torch.randn(5, 4, 6)
    assert model(latents).shape == (5, 3)
    assert not torch.allclose(model(latents), model(latents.flip(1)))  # latents have positions,
    assert model.position.abs().max() < 0.1  # which start small
    model.save_pretrained(tmp_path)
    assert torch.equal(models.LatentClassifier.from_pretrained(tmp_path)(latents), model(latents))
    with pytest.raises(ValueError, match=r"\(batch, 4, 6\), but got \(5, 3, 6\)"):
        model(latents[:, :3])


def test_wrong_arguments_are_refused_with_the_reason(tmp_path):
    spec = SPECS[0]
    cases = [
        (lambda: models.NFT(spec, channels=7), "even number of channels"),
        (lambda: models.NFT(spec, channels=8, num_heads=3), "8 channels and 3 heads"),
        (lambda: models.NFT(spec, pooling="max"), "pooling None, 'latents'"),  # pyright: ignore
        (lambda: models.NFT(spec, mlp="own", channels=8), "mlp 'per_layer' or 'shared'"),  # pyright: ignore
        (lambda: models.NFN(spec, pooling="max"), "pooling None, 'NP' or 'HNP'"),  # pyright: ignore
        (lambda: models.Inr2Array(spec, encoder="dws"), "encoder 'nft' or 'nfn' or 'neuron-graph'"),  # pyright: ignore
        (lambda: models.Inr2Array(spec, **ARRAY).decode(torch.zeros(1, 3, 4)), r"\(batch, 4, 4\)"),
        (lambda: models.SpatialNFN(spec, grid_size=2), "side 3 or more"),
        (lambda: models.ProbeCNN(spec, grid_size=12), "grid_size from 2 to 11, but got 12"),
        (lambda: models.ProbeCNN(NetworkSpec.siren([3, 4, 1])), "two coordinates, but got 3->4"),
        (lambda: models.Inr2Array(spec, encoder="nfn", probes=4), "'nfn', which lacks them"),
        (lambda: models.StatNN.from_pretrained(tmp_path), "has no config.json and no model.safetensors"),
    ]
    for make, message in cases:
        with pytest.raises(ValueError, match=message):
            make()


def test_loading_the_wrong_class_or_name_is_refused_with_the_reason(tmp_path, monkeypatch):
    models.StatNN(SPECS[0], head_channels=[4]).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="does not hold a NFT"):
        models.NFT.from_pretrained(tmp_path)
    assert isinstance(models.from_pretrained(tmp_path), models.StatNN)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="Found no model 'nobody/nothing'"):
        models.NFT.from_pretrained("nobody/nothing", cache_dir=tmp_path, local_files_only=True)


def test_damaged_weights_are_refused_with_their_path(tmp_path):
    models.StatNN(SPECS[0], head_channels=[4]).save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ValueError, match=rf"{weights} is damaged: "):
        models.from_pretrained(tmp_path)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", [*ON_WEIGHTS, *ASKING, "Canonical editor", "Canonical reader"])
def test_transforms_of_torch_func_work(name):
    canonical = {
        "Canonical editor": lambda spec: models.Canonical(EQUIVARIANT["NeuronGraphNet"](spec)),
        "Canonical reader": lambda spec: models.Canonical(INVARIANT["NFT HNP pool"](spec)),
    }
    model = {**ON_WEIGHTS, **ASKING, **canonical}[name](SPECS[0]).double().eval()
    x = random_features(SPECS[0]).tensor

    def call(tensor):
        return as_tensor(model(WeightSpaceFeatures(SPECS[0], tensor)))

    each = torch.func.vmap(lambda one: call(one[None]).flatten())(x)
    torch.testing.assert_close(each.flatten(), call(x).flatten(), rtol=1e-9, atol=1e-12)
    jacobian = torch.func.jacrev(lambda one: call(one[None]).flatten())(x[0])
    inputs = x[:1].clone().requires_grad_()
    output = call(inputs).flatten()
    (row,) = torch.autograd.grad(output[-1], inputs)
    torch.testing.assert_close(jacobian[-1], row[0], rtol=1e-7, atol=1e-12)
