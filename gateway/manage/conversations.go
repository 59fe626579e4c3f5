package manage

import (
	"encoding/json"
	"errors"
	"maps"
	"net/url"
	"slices"

	"github.com/valyala/fasthttp"

	"reveille/gateway/models"
	"reveille/gateway/web"
	"reveille/infra/policy"
	"reveille/infra/relay"
	"reveille/infra/rpc"
	"reveille/infra/state"
)

// maxKept bounds a host's list of saved conversations.
const maxKept = 4 << 20

type conversationList struct {
	Conversations []keptConversations `json:"conversations"`
	Unreached     []string            `json:"hosts_unreached"` // asleep, or they did not answer
}

// keptConversations is what a host keeps of a model.
type keptConversations struct {
	Runner        string  `json:"runner"`
	Model         string  `json:"model_name"`
	Conversations int     `json:"conversations"`
	Tokens        int64   `json:"tokens"`
	Bytes         int64   `json:"bytes"`
	Oldest        float64 `json:"oldest"` // seconds
	Newest        float64 `json:"newest"`
}

type forgottenAnswer struct {
	Status    string   `json:"status"`
	Forgotten int      `json:"forgotten"`
	Unreached []string `json:"hosts_unreached"`
}

// conversations is GET /internal/conversations: what each host keeps of the models' conversations.
func (s *Service) conversations(r *web.Request) error {
	out := conversationList{Conversations: []keptConversations{}}
	var err error
	out.Unreached, err = s.everyHost(r, "GET", rpc.PathKept, func(host string, body []byte) error {
		var list []keptConversations
		if err := json.Unmarshal(body, &list); err != nil {
			return err
		}
		for _, k := range list {
			k.Runner = host
			out.Conversations = append(out.Conversations, k)
		}
		return nil
	})
	if err != nil {
		return r.UnlessLeft(err)
	}
	return r.Reply(fasthttp.StatusOK, out)
}

// conversationsForget is DELETE /internal/conversations/{id}, and DELETE /internal/conversations for all models: hosts remove
// what they saved. What engines that run hold is not removed, nor what hosts have that cannot be reached.
func (s *Service) conversationsForget(r *web.Request) error {
	path := rpc.PathKept
	if r.Hit.ID != "" {
		model := r.Hit.ID
		if m, err := s.dir.Named(&r.Key, model); err == nil { // one that is gone from the catalogue may have left some
			model = m.ID
		}
		path += "?model=" + url.QueryEscape(model)
	}
	out := forgottenAnswer{Status: "success"}
	var err error
	out.Unreached, err = s.everyHost(r, "DELETE", path, func(_ string, body []byte) error {
		var one struct{ Forgotten int }
		err := json.Unmarshal(body, &one)
		out.Forgotten += one.Forgotten
		return err
	})
	if err != nil {
		return r.UnlessLeft(err)
	}
	return r.Reply(fasthttp.StatusOK, out)
}

// everyHost makes a call to each host, one after the other, and returns those that did not answer. It fails only if the
// client left.
func (s *Service) everyHost(r *web.Request, method, path string, take func(host string, body []byte) error) (unreached []string, err error) {
	snap, _ := s.dir.Fresh()
	var call relay.Call
	watch := r.Watch(func() { call.Cancel(relay.ErrGone) })
	defer watch.Stop()
	unreached = []string{}
	for _, host := range slices.Sorted(maps.Keys(snap.Hosts)) {
		err := errAsleep
		if h := snap.Hosts[host]; h.State == policy.Ready {
			var body []byte
			if body, err = s.answerOf(&call, method, h, path, r.ID); err == nil {
				err = take(host, body)
			}
		}
		if errors.Is(err, relay.ErrGone) {
			return nil, err
		}
		if err != nil {
			unreached = append(unreached, host)
		}
	}
	return unreached, nil
}

var (
	errAsleep  = errors.New("the host is not awake")
	errRefused = errors.New("the host refused")
)

// answerOf makes a call to a host and returns its answer.
func (s *Service) answerOf(call *relay.Call, method string, h *state.HostRecord, path, id string) ([]byte, error) {
	resp, err := s.dir.Tell(call, method, h, path, "", id, models.AskWait)
	if err != nil {
		return nil, err
	}
	defer resp.Close()
	if resp.Status() != fasthttp.StatusOK {
		return nil, errRefused
	}
	return resp.AppendBody(nil, maxKept)
}
