"""What ``/v1/models`` says of the model that is served."""

from __future__ import annotations

from stepwell.tests.transports.house import client, make_service


def test_ml_5_warnings_about_the_model_are_shown() -> None:
    guess = "tokenizer.ggml.pre is missing; forced to 'gpt-2'"
    for warnings in ((), (guess,)):
        with client(make_service(warnings=warnings)) as http:
            (listed,) = http.get("/v1/models").json()["data"]
            assert listed["warnings"] == list(warnings)
            assert http.get(f"/v1/models/{listed['id']}").json() == listed
