package manage

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strconv"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/models"
	"reveille/gateway/web"
	"reveille/infra/policy"
	"reveille/infra/relay"
	"reveille/infra/rpc"
)

// maxSavedList bounds a host's list of saved conversations.
const maxSavedList = 4 << 20

type ConversationList struct {
	Conversations []SavedConversations `json:"conversations"`
	Unreached     []string             `json:"hosts_unreached"` // asleep, or they did not respond
}

// SavedConversations is what a host keeps of a model.
type SavedConversations struct {
	Runner        string  `json:"runner"`
	Model         string  `json:"model_name"`
	Conversations int     `json:"conversations"`
	Tokens        int64   `json:"tokens"`
	Bytes         int64   `json:"bytes"`
	Oldest        float64 `json:"oldest"` // seconds
	Newest        float64 `json:"newest"`
}

type ForgetResponse struct {
	Status string             `json:"status"` // success; or incomplete: a host that is awake did not do all of it
	Hosts  []HostForgetResult `json:"hosts"`
}

// HostForgetResult is what a host forgot.
type HostForgetResult struct {
	Runner        string `json:"runner"`
	State         string `json:"state"`         // done, asleep, unreached, or partly: not all that was saved could be removed
	Conversations int    `json:"conversations"` // that were saved
	Copies        int    `json:"copies"`        // of models, which are unloaded because of what they hold
	Requests      int    `json:"requests"`      // open requests of these, which finish first
}

// Conversations is GET /internal/conversations: what each host keeps of the models' conversations.
func (s *Service) Conversations(r *web.Request) error {
	out := ConversationList{Conversations: []SavedConversations{}, Unreached: []string{}}
	err := s.callHosts(r, "GET", rpc.PathSavedConversations, func(host string, body []byte, err error) {
		var list []SavedConversations
		if err == nil {
			err = json.Unmarshal(body, &list)
		}
		if err != nil {
			out.Unreached = append(out.Unreached, host)
		}
		for _, k := range list {
			k.Runner = host
			out.Conversations = append(out.Conversations, k)
		}
	})
	if err != nil {
		return r.UnlessClientGone(err)
	}
	return r.Reply(fasthttp.StatusOK, out)
}

// ConversationsForget is DELETE /internal/conversations/{id}, and DELETE /internal/conversations for all models. The
// pool remembers it for hosts that are asleep or not reached; the others do it now.
func (s *Service) ConversationsForget(r *web.Request) error {
	model := r.Match.ID
	if model != "" {
		switch m, err := s.registry.Named(&r.Key, model); {
		case err == nil:
			model = m.ID
		case !errors.Is(err, api.ModelNotFound) || r.Key.Limited(): // one that is gone from the catalog may have left some
			return err
		}
	}
	at, err := s.cfg.Store.ForgetConversations(context.Background(), model)
	if err != nil {
		return models.StoreError(err)
	}
	path := rpc.PathSavedConversations + "?at=" + strconv.FormatUint(at, 10)
	if model != "" {
		path += "&model=" + url.QueryEscape(model)
	}
	out := ForgetResponse{Status: "success", Hosts: []HostForgetResult{}}
	err = s.callHosts(r, "DELETE", path, func(host string, body []byte, err error) {
		var did rpc.Forgotten
		if err == nil {
			err = json.Unmarshal(body, &did)
		}
		one := HostForgetResult{host, "done", did.Conversations, did.Copies, did.Requests}
		switch {
		case errors.Is(err, errAsleep):
			one.State = "asleep"
		case err != nil:
			one.State, out.Status = "unreached", "incomplete"
		case did.Partly:
			one.State, out.Status = "partly", "incomplete"
		}
		out.Hosts = append(out.Hosts, one)
	})
	if err != nil {
		return r.UnlessClientGone(err)
	}
	return r.Reply(fasthttp.StatusOK, out)
}

// callHosts makes a call to each host that is awake, one after the other, and passes the outcome to take. It fails only
// if the client left.
func (s *Service) callHosts(r *web.Request, method, path string, take func(host string, body []byte, err error)) error {
	snap, _ := s.registry.Fresh()
	ctx, stop := r.ClientContext()
	defer stop()
	for _, host := range slices.Sorted(maps.Keys(snap.Hosts)) {
		err := errAsleep
		var body []byte
		if h := snap.Hosts[host]; h.Addr != "" && (h.State == policy.Ready || h.State == policy.Draining) {
			body, err = s.registry.Fetch(ctx, method, h, path, r.ID, maxSavedList)
		}
		if errors.Is(err, relay.ErrClientGone) {
			return err
		}
		take(host, body, err)
	}
	return nil
}

var errAsleep = errors.New("the host is not awake")
