"""The clients of OpenAI and Anthropic against a gateway: sdk.py GATEWAY KEY SIMULATOR. Ends with 0 if everything is as they expect."""

import json
import sys
import urllib.request

import anthropic
import openai

gateway, key, simulator = sys.argv[1:]
CHAT = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Once upon a time. " * 10}]


def fault(**service):
    body = json.dumps({"service": service}).encode()
    urllib.request.urlopen(urllib.request.Request(simulator + "/sim/fault", body, {"content-type": "application/json"})).close()


def refused(kind, call, status=None, code=None):
    """The call is refused with this exception."""
    try:
        call()
    except kind as error:
        assert status is None or error.status_code == status, error
        assert code is None or error.code == code, (error.code, error)
        return error
    raise AssertionError(f"not refused: {kind.__name__}")


def with_openai():
    client = openai.OpenAI(base_url=gateway + "/v1", api_key=key, max_retries=0)
    assert [model.id for model in client.models.list()] == ["lora", "sim"]

    answer = client.chat.completions.create(model="sim", messages=CHAT, max_tokens=4)
    assert answer.choices[0].message.content and answer.usage.completion_tokens == 4
    again = client.chat.completions.create(model="sim", messages=CHAT, max_completion_tokens=4)
    assert again.choices[0].message.content == answer.choices[0].message.content
    assert again.usage.prompt_tokens == answer.usage.prompt_tokens and again.usage.prompt_tokens_details.cached_tokens > 100
    assert client.chat.completions.create(model="lora", messages=CHAT, max_tokens=1).model == "lora"

    chunks = list(client.chat.completions.create(model="sim", messages=CHAT, max_tokens=5, stream=True))
    assert len(chunks) == 5 and all(chunk.choices and chunk.usage is None for chunk in chunks), chunks
    asked = client.chat.completions.create(model="sim", messages=CHAT, max_tokens=5, stream=True, stream_options={"include_usage": True})
    chunks = list(asked)
    assert len(chunks) == 6 and chunks[-1].usage.completion_tokens == 5 and not chunks[-1].choices
    raw = client.chat.completions.with_raw_response.create(model="sim", messages=CHAT, max_tokens=1, extra_headers={"x-kvplane-receipt": "1"})
    assert raw.headers["x-kvplane-receipt"] and raw.headers["x-request-id"] and raw.parse().usage

    text = client.completions.create(model="sim", prompt="Once upon a time. " * 10, max_tokens=3)
    assert text.choices[0].text and text.usage.completion_tokens == 3
    assert len(list(client.completions.create(model="sim", prompt=[1, 2, 3], max_tokens=3, stream=True))) == 3

    response = client.responses.create(model="sim", instructions="Be brief.", input="Hi", max_output_tokens=3)
    assert response.output_text and response.status == "completed" and response.usage.output_tokens == 3
    events = list(client.responses.create(model="sim", input="Hi", max_output_tokens=3, stream=True))
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    assert sum(event.type == "response.output_text.delta" for event in events) == 3

    embeddings = client.embeddings.create(model="sim", input=["one", "two"])
    assert [one.index for one in embeddings.data] == [0, 1] and len(embeddings.data[0].embedding) == 8

    refused(openai.NotFoundError, lambda: client.chat.completions.create(model="nobody", messages=CHAT), 404, "model_not_found")
    refused(openai.PermissionDeniedError, lambda: client.chat.completions.create(model="hidden", messages=CHAT), 403, "model_forbidden")
    wrong = client.with_options(api_key="wrong")
    refused(openai.AuthenticationError, lambda: wrong.chat.completions.create(model="sim", messages=CHAT), 401, "invalid_api_key")
    fault(die_after=2, count=1)
    seen = []
    error = refused(
        openai.APIError, lambda: seen.extend(client.chat.completions.create(model="sim", messages=CHAT, max_tokens=9, stream=True)),
    )
    assert "engine" in str(error), error
    fault(status=503, count=1)
    error = refused(openai.APIStatusError, lambda: client.chat.completions.create(model="sim", messages=CHAT, max_tokens=1), 503)
    # A client that retries, as it does unless it is told not to, does not notice.
    fault(status=503, count=1)
    assert client.with_options(max_retries=2).chat.completions.create(model="sim", messages=CHAT, max_tokens=1).usage


def with_anthropic():
    client = anthropic.Anthropic(base_url=gateway, api_key=key, max_retries=0)
    chat = [{"role": "user", "content": [{"type": "text", "text": "Once upon a time. " * 10}]}]
    answer = client.messages.create(model="sim", system="Be brief.", messages=chat, max_tokens=4)
    assert answer.content[0].text and answer.stop_reason == "max_tokens" and answer.usage.output_tokens == 4
    with client.messages.stream(model="sim", system="Be brief.", messages=chat, max_tokens=4) as stream:
        texts = list(stream.text_stream)
        last = stream.get_final_message()
    assert len(texts) == 4 and last.usage.cache_read_input_tokens > 100, last
    refused(anthropic.NotFoundError, lambda: client.messages.create(model="nobody", messages=chat, max_tokens=1), 404)
    wrong = anthropic.Anthropic(base_url=gateway, api_key="wrong", max_retries=0)
    error = refused(anthropic.AuthenticationError, lambda: wrong.messages.create(model="sim", messages=chat, max_tokens=1), 401)
    assert error.body["error"]["type"] == "authentication_error", error.body
    fault(die_after=2, count=1)

    def stream():
        with client.messages.stream(model="sim", messages=chat, max_tokens=9) as stream:
            list(stream.text_stream)

    refused(anthropic.APIError, stream)


with_openai()
with_anthropic()
print(json.dumps({"openai": openai.__version__, "anthropic": anthropic.__version__}))
