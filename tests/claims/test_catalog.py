"""The catalog of claims, which is read without torch, is what the registry has."""

from qkv.claims.catalog import FILE, catalog_text, read_catalog
from qkv.claims.registry import CLAIMS


def test_catalog_json_is_what_the_registry_has():
    assert FILE.read_text("utf-8") == catalog_text(CLAIMS), "run: python -m qkv.claims.catalog"


def test_read_catalog_gives_the_claims_with_experiments_that_load_on_call():
    catalog = read_catalog()
    assert list(catalog) == list(CLAIMS)
    for name, claim in catalog.items():
        assert (claim.knobs, claim.mutants, claim.overturn) == (
            CLAIMS[name].knobs,
            CLAIMS[name].mutants,
            CLAIMS[name].overturn,
        )
