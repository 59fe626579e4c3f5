package redact

import "testing"

func TestSecrets(t *testing.T) {
	for line, want := range map[string]string{
		`msg="no Redis" url=redis://:hunter22@10.0.0.1:6379/0`:             `msg="no Redis" url=redis://[secret]@10.0.0.1:6379/0`,
		`url=rediss://user:pa%40ss@redis.example.com`:                      `url=rediss://[secret]@redis.example.com`,
		`url=redis://user:p/w@h:6379/0`:                                    `url=redis://[secret]@h:6379/0`,
		`GET http://[::1]:8080/a@b and http://h:8080/a@b`:                  `GET http://[::1]:8080/a@b and http://h:8080/a@b`,
		`GET https://a.blob/x?sv=1&sig=ab%3D&se=2 sig=15`:                  `GET https://a.blob/x?sv=1&sig=[secret]&se=2 sig=15`,
		`password=hunter22 host=here`:                                      `password=[secret] host=here`,
		`msg="x" REVEILLE_RUNNER_SECRET=abc,next=1`:                        `msg="x" REVEILLE_RUNNER_SECRET=[secret],next=1`,
		`error="Authorization: Bearer abc.def-ghi sent"`:                   `error="Authorization: [secret] sent"`,
		`error="{\"api_key\":\"abc def\",\"n\":1}"`:                        `error="{\"api_key\":[secret],\"n\":1}"`,
		`GET https://b/k?X-Amz-Signature=0a1b2c&X-Amz-Expires=60 failed`:   `GET https://b/k?X-Amz-Signature=[secret]&X-Amz-Expires=60 failed`,
		`X-Amz-Security-Token=IQoJb3JpZ2luX2Vj&x=1`:                        `X-Amz-Security-Token=[secret]&x=1`,
		`the key rv_0123456789abcdefghij was sent`:                         `the key [secret] was sent`,
		`hf_abcdefghijklmnopqrst and AKIAABCDEFGHIJKLMNOP`:                 `[secret] and [secret]`,
		`basic dXNlcjpwYXNzd29yZA==`:                                       `basic [secret]`,
		`a value-that-is-known twice: value-that-is-known`:                 `a [secret] twice: [secret]`,
		`level=INFO msg="gateway listens" addr=127.0.0.1:8080 models=6`:    `level=INFO msg="gateway listens" addr=127.0.0.1:8080 models=6`,
		`prompt_tokens=12 max_tokens: 8 path=/models/a.gguf at=12:30:01`:   `prompt_tokens=12 max_tokens: 8 path=/models/a.gguf at=12:30:01`,
		`msg="secrets are read again" url=http://127.0.0.1:8080/v1/models`: `msg="secrets are read again" url=http://127.0.0.1:8080/v1/models`,
	} {
		if got := Secrets(line, "value-that-is-known", "", "a"); got != want {
			t.Errorf("%s\n got %s\nwant %s", line, got, want)
		}
	}
	if got := Password("redis://:p%40ss@h:1/0"); got != "p@ss" || Password("redis://h:1") != "" {
		t.Errorf("password %q", got)
	}
}
