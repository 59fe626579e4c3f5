// Package manage serves the management, listing and operator routes: what is loaded and what could be, loads and
// unloads, options, names, registrations, hosts, logs. Routes that only read use no model and wake nothing.
package manage

import (
	"context"
	"time"

	"reveille/gateway/keys"
	"reveille/gateway/models"
	"reveille/gateway/scheduling"
	"reveille/gateway/web"
	"reveille/infra/catalog"
	"reveille/infra/logring"
	"reveille/infra/state"
)

// Config configures a Service. All fields but Register are required.
type Config struct {
	Models  *models.Registry
	Gate    *scheduling.Gate
	Store   *state.Store
	Mirror  *state.Mirror
	Usage   *state.UsageReporter
	Catalog func() *catalog.Catalog
	Keys    *keys.Set

	// Overlay applies the models registered at run time to the catalog again.
	Overlay func(context.Context) error
	// Register lists where the weights of models that clients register can be stored; empty: nowhere.
	Register catalog.RegisterList

	Version   string
	Keepalive time.Duration // between messages of a streamed pull
	Draining  func() bool
	Ring      *logring.Ring   // this gateway's own log
	Lifetime  context.Context // ends when the server shuts down, and streams of logs with it
}

// Service serves the routes. Make it with New.
type Service struct {
	cfg      Config
	registry *models.Registry
	started  time.Time
}

// New makes a service.
func New(cfg Config) *Service {
	return &Service{cfg: cfg, registry: cfg.Models, started: time.Now()}
}

// namedModel returns the model that a management call's body names.
func (s *Service) namedModel(r *web.Request) (*catalog.Model, error) {
	name, err := r.ModelName()
	if err != nil {
		return nil, err
	}
	return s.registry.Named(&r.Key, name.String())
}
