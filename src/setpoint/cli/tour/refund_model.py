"""A model that does what the customer's text tells it to."""

from __future__ import annotations

from setpoint.cli.tour.narration import Narrator
from setpoint.cli.tour.refund_shop import Shop


async def play(narrator: Narrator, shop: Shop) -> None:
    narrator.chapter("2. The customer's text gives orders, and the model obeys")
