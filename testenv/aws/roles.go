package aws

import (
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
)

// Role is the credentials of a role, in the form in which a metadata service tells them. Each call that is made with them is
// held against the role's policies.
type Role struct {
	Code, Type                                      string
	AccessKeyID                                     string `json:"AccessKeyId"`
	SecretAccessKey, Token, LastUpdated, Expiration string
}

// Administrator may do everything.
var Administrator = Role{
	Code: "Success", Type: "AWS-HMAC", AccessKeyID: "test", SecretAccessKey: "test", Token: "test",
	LastUpdated: "2026-01-01T00:00:00Z", Expiration: "2100-01-01T00:00:00Z",
}

// InstanceRole is what the metadata service of an instance tells of the role in its profile.
func (e *Emulator) InstanceRole(id string) Role {
	e.t.Helper()
	var r Role
	e.ask("credentials?"+url.Values{"instance": {id}}.Encode(), &r)
	return r
}

// FunctionRole is what the environment of a Lambda function has of its role.
func (e *Emulator) FunctionRole(name string) Role {
	e.t.Helper()
	var r Role
	e.ask("credentials?"+url.Values{"function": {name}}.Encode(), &r)
	return r
}

// Grant is a statement of a role's policies that has allowed a call of an action which no other statement would have.
type Grant struct{ Role, Statement, Action string }

// Grants are those so far.
func (e *Emulator) Grants() []Grant {
	e.t.Helper()
	var told [][3]string
	e.ask("grants", &told)
	var grants []Grant
	for _, g := range told {
		grants = append(grants, Grant{g[0], g[1], g[2]})
	}
	return grants
}

func (e *Emulator) ask(what string, answer any) {
	e.t.Helper()
	resp, err := http.Get(e.URL + "/emulator/" + what)
	if err != nil {
		e.t.Fatal("testenv: AWS emulator:", err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(answer); err != nil || resp.StatusCode != http.StatusOK {
		e.t.Fatalf("testenv: AWS emulator: %s: %s, %v", what, resp.Status, err)
	}
}

// ConfigAs is Config with the credentials of a role.
func (e *Emulator) ConfigAs(r Role) aws.Config {
	config := e.Config()
	config.Credentials = credentials.NewStaticCredentialsProvider(r.AccessKeyID, r.SecretAccessKey, r.Token)
	return config
}
