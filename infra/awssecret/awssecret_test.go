package awssecret

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"reveille/infra/state"
	"reveille/testenv"
)

func TestCredentials(t *testing.T) {
	for text, want := range map[string]string{
		`{"username":"pool","password":"p","user_arn":"arn"}`: "pool:p",
		`{"password":"p"}`:                                     ":p",
		`{"username":"pool"}`:                                  "error",
		`{"username":"pool","password":"canary"`:               "error",
		`canary`:                                               "error",
		`{"password":["canary"]}`:                              "error",
		fmt.Sprintf(`{"password":"%0600d"}`, 7):                "error",
		fmt.Sprintf(`{"password":"p","username":"%0600d"}`, 7): "error",
	} {
		user, password, err := credentials([]byte(text))
		if err != nil {
			if strings.Contains(err.Error(), "canary") || want != "error" {
				t.Errorf("%.40s: %v", text, err)
			}
			continue
		}
		if user+":"+password != want {
			t.Errorf("%.40s: %s:%s, want %s", text, user, password, want)
		}
	}
}

// A store finds Redis' password in the secret that the settings name, by the SDK's own environment.
func TestFollowRedis(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if target := r.Header.Get("X-Amz-Target"); target != "secretsmanager.GetSecretValue" {
			http.Error(w, target, http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/x-amz-json-1.1")
		fmt.Fprint(w, `{"SecretString":"{\"username\":\"pool\",\"password\":\"from the vault\"}"}`)
	}))
	t.Cleanup(server.Close)
	for k, v := range map[string]string{
		"AWS_ENDPOINT_URL": server.URL, "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
		"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
	} {
		t.Setenv(k, v)
	}
	admin := redis.NewClient(&redis.Options{Addr: testenv.Redis(t)})
	t.Cleanup(func() { _ = admin.Close() })
	for _, rule := range [][]any{{"pool", "on", ">from the vault", "~*", "&*", "+@all"}, {"default", "off"}} {
		if err := admin.Do(t.Context(), append([]any{"ACL", "SETUSER"}, rule...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	c := FollowRedis("redis", slog.New(slog.DiscardHandler))
	store, err := state.Open(state.Options{URL: "redis://" + admin.Options().Addr, Timeout: 10 * time.Second, Credentials: c})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	if _, err := store.Snapshot(t.Context()); err != nil {
		t.Error(err)
	}
	if FollowRedis("", slog.New(slog.DiscardHandler)) != nil {
		t.Error("no secret, and yet credentials")
	}
}
