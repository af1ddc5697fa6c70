"""The project that the tests of set-ups are about."""

from __future__ import annotations

from decimal import Decimal

from orchestrator.core.setup.plan import Grant, SetupRequest, Standing, plan_setup
from orchestrator.core.setup.steps import LIFECYCLE, EnableApis, GrantRole, MakeRole, ShareCaps, WriteSettings

ADA = "user:ada@example.com"
WANTED = SetupRequest(
    "my-project", "my-bench", launcher=ADA, budget=(("per_run_usd", Decimal("1.00")), ("per_day_usd", Decimal("5.00")))
)
CAREFUL = {
    "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "enforced"},
    "lifecycle": LIFECYCLE,
}


def after_all_of_it() -> Standing:
    """What there is once every step of `WANTED` has been taken."""
    on_project, on_bucket, on_account = set(), set(), set()
    roles, values, caps, apis = {}, {}, dict[str, str](), frozenset[str]()
    for step in plan_setup(WANTED):
        match step:
            case EnableApis():
                apis = frozenset(step.apis)
            case MakeRole():
                roles[step.role_id] = frozenset(step.permissions)
            case GrantRole():
                of_place = {"project": on_project, "bucket": on_bucket, "account": on_account}[step.on]
                of_place.add(Grant(step.role, step.member, step.condition.expression if step.condition else ""))
            case WriteSettings():
                values = dict(step.values)
            case ShareCaps():
                caps = {str(window): str(usd) for window, usd in step.caps}
            case _:
                pass
    granted = frozenset(on_project), frozenset(on_bucket), frozenset(on_account)
    return Standing(apis, CAREFUL, True, roles, *granted, values, caps)
