// Package manage serves the management, listing and operator routes: what is loaded and what could be, loads and unloads,
// options, names, registrations, hosts, logs. Routes that only read use no model and wake nothing.
package manage

import (
	"context"
	"time"

	"reveille/gateway/keys"
	"reveille/gateway/models"
	"reveille/gateway/scheduling"
	"reveille/gateway/web"
	"reveille/infra/catalog"
	"reveille/infra/jsonscan"
	"reveille/infra/logring"
	"reveille/infra/recipe"
	"reveille/infra/state"
)

// Config configures a Service. All fields but Overlay, Register and Installed are required.
type Config struct {
	Models  *models.Directory
	Gate    *scheduling.Gate
	Store   *state.Store
	Mirror  *state.Mirror
	Usage   *state.UsageReporter
	Catalog func() *catalog.Catalog
	Keys    *keys.Set

	// Overlay applies the models registered at run time to the catalogue again; nil: nothing can be registered.
	Overlay func(context.Context) error
	// Register lists where the weights of models that clients register may be stored; empty: nowhere.
	Register catalog.RegisterList

	// Installed reports whether an engine's program is on this machine; nil: it is looked for in PATH.
	Installed func(*recipe.Recipe) bool

	Version   string
	Keepalive time.Duration // between messages of a streamed pull
	Draining  func() bool
	Ring      *logring.Ring   // this gateway's own log
	Life      context.Context // ends when the server shuts down, and streams of logs with it
}

// Service serves the routes. Make it with New.
type Service struct {
	cfg     Config
	dir     *models.Directory
	started time.Time
}

// New makes a service.
func New(cfg Config) *Service {
	if cfg.Installed == nil {
		cfg.Installed = inPath
	}
	return &Service{cfg: cfg, dir: cfg.Models, started: time.Now()}
}

// Handler serves one route. An error is answered in the dialect of the path.
type Handler func(*web.Request) error

// Handlers returns the handlers by the names of their routes.
func (s *Service) Handlers() map[string]Handler {
	return map[string]Handler{
		"health":                   s.Health,
		"load":                     s.Load,
		"unload":                   s.Unload,
		"unload_all":               s.UnloadAll,
		"pin":                      s.Pin,
		"host_wake":                s.HostWake,
		"host_forget":              s.HostForget,
		"host_sleep":               s.HostSleep,
		"conversations":            s.Conversations,
		"conversations_forget":     s.ConversationsForget,
		"conversations_forget_all": s.ConversationsForget,
		"models":                   s.Models,
		"model":                    s.Model,
		"register":                 s.Register,
		"pull":                     s.Pull,
		"delete":                   s.Delete,
		"options_get":              s.OptionsGet,
		"options_set":              s.OptionsSet,
		"options_delete":           s.OptionsDelete,
		"config_set":               s.ConfigSet,
		"config_get":               s.ConfigGet,
		"keys_list":                s.KeysList,
		"keys_add":                 s.KeysAdd,
		"keys_revoke":              s.KeysRevoke,
		"aliases":                  s.Aliases,
		"alias_get":                s.AliasGet,
		"alias_set":                s.AliasSet,
		"alias_set_one":            s.AliasSet,
		"alias_delete":             s.AliasDelete,
		"stats":                    s.Stats,
		"system_info":              s.SystemInfo,
		"running":                  s.Running,
		"logs":                     s.Logs,
		"logs_stream":              s.LogsStream,
		"logs_stream_model":        s.LogsStreamModel,
		"ollama_version":           s.OllamaVersion,
		"ollama_tags":              s.OllamaTags,
		"ollama_ps":                s.OllamaPS,
		"ollama_show":              s.OllamaShow,
		"ollama_pull":              s.OllamaPull,
		"ollama_delete":            s.OllamaDelete,
	}
}

// named returns the model that a management call's body names.
func (s *Service) named(r *web.Request, values []jsonscan.Value) (*catalog.Model, error) {
	v := r.Match.Route.ModelName(values)
	if v.Empty() {
		return nil, models.NoName()
	}
	return s.dir.Named(&r.Key, v.String())
}
