"""What is changed in the process is as it was afterwards."""

import gc

import pytest

from parley.process import loading


@pytest.mark.parametrize("collected", [True, False])
def test_loading_pauses_the_search_for_garbage_and_leaves_it_as_it_was(collected: bool) -> None:
    before = gc.isenabled()
    (gc.enable if collected else gc.disable)()
    frozen = gc.get_freeze_count()
    try:
        with pytest.raises(ImportError), loading():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() is collected
        assert gc.get_freeze_count() == frozen
    finally:
        (gc.enable if before else gc.disable)()
