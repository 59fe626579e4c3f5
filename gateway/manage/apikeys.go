package manage

import (
	"context"
	"strings"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/keys"
	"reveille/gateway/models"
	"reveille/gateway/web"
	"reveille/infra/state"
)

// maxKeys bounds the API keys in Redis, the revoked ones too.
const maxKeys = 10_000

// KeysList is GET /internal/keys: the API keys in Redis, without the keys themselves, which are not stored.
func (s *Service) KeysList(r *web.Request) error {
	table, err := s.registry.Tables.Read(context.Background(), state.APIKeys)
	if err != nil {
		return models.StoreError(err)
	}
	return r.Reply(fasthttp.StatusOK, map[string]any{"keys": keys.List(table)})
}

// KeysAdd is POST /internal/keys. The client makes the key and sends its digest, so that the key is known to its holder
// alone.
func (s *Service) KeysAdd(r *web.Request) error {
	if !s.cfg.Keys.Configured() {
		return api.New(api.OptionConflict, "This gateway serves without API keys: start it with --admin-key or --api-keys-file first.")
	}
	var asked struct {
		Digest string `json:"digest"`
		Grant  string `json:"grant"`
	}
	if err := r.Decode(&asked); err != nil {
		return err
	}
	name, grant := strings.ToLower(strings.TrimPrefix(asked.Digest, "sha256:")), asked.Grant
	if err := keys.CheckStored(name, grant); err != nil {
		return api.Newf(api.InvalidType, "The key cannot be added: %v.", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if err := r.Key.MayGrant(grant); err != nil {
		return api.Newf(api.InsufficientScope, "The key cannot be added: %v.", err)
	}
	table, err := s.registry.Tables.Read(context.Background(), state.APIKeys)
	switch {
	case err != nil:
		return models.StoreError(err)
	case table[name] != "":
		return api.New(api.OptionConflict, "The key exists, or was revoked.")
	case len(table) >= maxKeys:
		return api.Newf(api.OptionConflict, "The pool already has %d API keys, including revoked ones, which is the maximum.", maxKeys)
	}
	if err := s.registry.Tables.Set(context.Background(), state.APIKeys, name, grant); err != nil {
		return err
	}
	return r.Reply(fasthttp.StatusOK, keys.List(map[string]string{name: grant})[0])
}

// KeysRevoke is DELETE /internal/keys/{id}. Every gateway refuses the key within seconds.
func (s *Service) KeysRevoke(r *web.Request) error {
	table, err := s.registry.Tables.Read(context.Background(), state.APIKeys)
	if err != nil {
		return models.StoreError(err)
	}
	names := keys.Matching(table, r.Match.ID)
	if len(names) != 1 {
		return api.Newf(api.InvalidType, "%d API keys in Redis have this id or name; want one.", len(names)).WithParam("id")
	}
	if err := s.registry.Tables.Set(context.Background(), state.APIKeys, names[0], keys.Revoked); err != nil {
		return err
	}
	return r.Reply(fasthttp.StatusOK, keys.List(map[string]string{names[0]: keys.Revoked})[0])
}
