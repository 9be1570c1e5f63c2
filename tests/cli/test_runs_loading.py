"""--app, SETPOINT_APP, pyproject.toml: the application by name, and what is wrong with it at its own line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .shop import Shop

START = ("run", "refund", "--input", '{"order_id": "A-1"}')


@pytest.mark.parametrize("name", ["shop.py:app", "./shop.py", "shop:app", "shop"])
def test_an_application_is_named_by_file_or_by_module(shop: Shop, name: str):
    shop.environment.clear()
    shop.run(*START, "--app", name)


def test_the_command_line_goes_before_the_environment_and_that_before_the_project(shop: Shop):
    shop.environment.clear()
    assert "no application was named" in shop.run(*START, code=2).stderr
    shop.write("pyproject.toml", '[tool.setpoint]\napp = "shop:app"\n')
    shop.run(*START)
    assert (
        "there is no file other.py (named by SETPOINT_APP)" in shop.run(*START, code=2, SETPOINT_APP="other.py").stderr
    )
    shop.run(*START, "--app", "shop.py", SETPOINT_APP="other.py")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.setpoint", "pyproject.toml cannot be read"),
        ("[tool.setpoint]\napp = 3\n", "[tool.setpoint] app of pyproject.toml is 3"),
        ('[tool.setpoint]\napp = ":app"\n', "names no module"),
    ],
)
def test_a_project_file_that_is_wrong_is_named(shop: Shop, text: str, said: str):
    shop.environment.clear()
    shop.write("pyproject.toml", text)
    assert said in shop.run(*START, code=2).stderr


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import json\n\ndef f():\n    return 1 / 0\n\nf()\n", "broken.py:4: importing the application broken.py"),
        ("x = (\n", "broken.py:1: importing the application broken.py raised SyntaxError"),
        ("import nothing_of_that_name\n", "broken.py:1: importing the application broken.py raised ModuleNot"),
        ("from . import shop\n", "is named as a module: --app package.module:app"),
        ("raise SystemExit(3)\n", "broken.py:1: importing the application broken.py raised SystemExit"),
        ("from setpoint import App\n\napp = App('a b')\n", "broken.py:3: 'a b' is no name for an app"),
        ("x = 1\n", "broken.py (of --app) holds no setpoint.App"),
        ("from setpoint import App\na, b = App('a'), App('b')\n", "holds 2 apps: a, b"),
    ],
)  # fmt: skip
def test_what_the_users_module_raises_is_told_with_its_line(shop: Shop, source: str, said: str):
    shop.write("broken.py", source)
    done = shop.run(*START, "--app", "broken.py", code=2)
    assert said in done.stderr and "Traceback" not in done.stderr


def test_a_name_that_is_no_application_says_which_there_are(shop: Shop):
    assert "its apps: app" in shop.run(*START, "--app", "shop.py:ap", code=2).stderr
    assert "which is no setpoint.App" in shop.run(*START, "--app", "shop.py:refund", code=2).stderr
    assert "there is no module 'nowhere'" in shop.run(*START, "--app", "nowhere:app", code=2).stderr


def test_a_workflow_that_breaks_an_obligation_never_starts(shop: Shop):
    shop.write("bad.py", shop.read("shop.py") + BAD)
    done = shop.run("run", "wild", "--input", '{"order_id": "A-1"}', "--app", "bad.py", code=2)
    assert "burn" in done.stderr
    assert shop.json("get")["runs"] == []


BAD = """
@capability(effect="irreversible")
async def burn(ctx: Context, order_id: str) -> None: ...
wild = app.workflow("wild", input=Input, state=State).capability("burn", burn)
"""


# Definitions


def test_explain_workflow_prints_text_and_pictures(shop: Shop):
    text = shop.run("explain", "workflow", "refund").stdout
    assert "refund" in text and "pay" in text
    assert shop.run("explain", "workflow", "refund", "--mermaid").stdout.startswith(("graph", "flowchart"))
    shop.run("explain", "workflow", "refund", "--svg", "refund.svg")
    assert "<svg" in shop.read("refund.svg")
    assert "<svg" in shop.run("explain", "workflow", "refund", "--svg", "-").stdout
    assert "the application declares: big" in shop.run("explain", "workflow", code=2).stderr
    assert "go with: setpoint explain workflow" in shop.run("explain", "tools", "--mermaid", code=2).stderr


def dry_run(shop: Shop) -> dict[str, Any]:
    """Of the one run, in a process of its own: this one would know the application from before the deploy."""
    return json.loads(shop.run("migrate", "--dry-run", "--json").stdout)["runs"][0]


def test_a_deploy_strands_no_run_and_migrate_says_what_it_means(shop: Shop):
    """N1, R059"""
    shop.run_order("waits", "A-1", code=13)
    assert dry_run(shop)["standing"] == "same"
    changed = shop.read("shop.py").replace(
        '.step("after", mend))', '.step("after", mend).step("more", lambda s: {}))', 1
    )
    shop.write("shop.py", changed.replace('app.workflow("waits", ', 'app.workflow("waits", version=2, '))
    told = dry_run(shop)
    assert (told["standing"], told["can_move"], told["newest"]) == ("movable", True, 2)
    shop.write("fixed", "")
    shop.run("signal", "A-1", "word")
    stays = shop.run("resume", "A-1", code=2)
    assert "pinned to version 1 of waits" in stays.stderr
    assert "goes on under version 2" in shop.run("migrate", "A-1").stdout
    done = shop.run("resume", "A-1")
    assert "more done" in done.stderr
    assert shop.ledger() == [("pay", "refund:A-1")]
    assert "which run is to be moved?" in shop.run("migrate", code=2).stderr


def test_a_run_that_a_deploy_would_break_is_told_with_12(shop: Shop):
    """N1"""
    shop.run_order("waits", "A-1", code=13)
    changed = shop.read("shop.py").replace('.wait_for("word", timeout="1h", into="word")', "", 1)
    shop.write("shop.py", changed.replace('app.workflow("waits", ', 'app.workflow("waits", version=2, '))
    done = shop.run("migrate", "--dry-run", code=12)
    assert "A-1" in done.stdout and "breaks" in done.stdout and "waits/word" in done.stdout
    assert "cannot be moved" in shop.run("migrate", "A-1", code=2).stderr
