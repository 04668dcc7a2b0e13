import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_fit_and_render_draws_a_picture(tmp_path):
    out = tmp_path / "fits.png"
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "fit_and_render.py"), str(out)], capture_output=True, text=True, check=True
    )
    assert "15 fits" in done.stdout
    assert out.read_bytes().startswith(b"\x89PNG")
