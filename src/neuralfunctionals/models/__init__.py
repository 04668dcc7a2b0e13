"""The models of the papers, one file each."""

from neuralfunctionals.models.canonical import Canonical
from neuralfunctionals.models.dws import DWSNet
from neuralfunctionals.models.heads import LatentClassifier
from neuralfunctionals.models.inr2array import Inr2Array
from neuralfunctionals.models.league import league
from neuralfunctionals.models.neuron_graph import NeuronGraphNet
from neuralfunctionals.models.nfn import NFN
from neuralfunctionals.models.nft import NFT
from neuralfunctionals.models.pretrained import Pretrained, from_pretrained
from neuralfunctionals.models.probe_cnn import ProbeCNN
from neuralfunctionals.models.render_cnn import RenderCNN
from neuralfunctionals.models.spatial_nfn import SpatialNFN
from neuralfunctionals.models.statnn import StatNN

__all__ = [
    "NFN",
    "NFT",
    "Canonical",
    "DWSNet",
    "Inr2Array",
    "LatentClassifier",
    "NeuronGraphNet",
    "Pretrained",
    "ProbeCNN",
    "RenderCNN",
    "SpatialNFN",
    "StatNN",
    "from_pretrained",
    "league",
]
