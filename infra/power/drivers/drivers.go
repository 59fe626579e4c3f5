// Package drivers constructs every power driver except local, which needs settings of the program that uses it.
package drivers

import (
	"context"
	"log/slog"
	"net/http"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"reveille/infra/awsquery"
	"reveille/infra/catalog"
	"reveille/infra/power"
	"reveille/infra/power/asg"
	"reveille/infra/power/ec2"
	"reveille/infra/power/exec"
	"reveille/infra/power/kubernetes"
	"reveille/infra/power/wol"
)

// Remote returns the drivers exec, wol, ec2, asg and kubernetes. The settings and credentials of AWS and of Kubernetes
// come from the environment, and are read when a host of the driver is first woken or put to sleep. log gets the steps
// of wakes.
func Remote(log *slog.Logger) map[catalog.Driver]power.Driver {
	a := &account{regions: map[string]aws.Config{}}
	return map[catalog.Driver]power.Driver{
		catalog.DriverExec: exec.New(0),
		catalog.DriverWoL:  wol.New(wol.Config{Log: log}),
		catalog.DriverEC2:  a.ec2(),
		catalog.DriverASG: asg.New(asg.Config{EC2: a.ec2Client, Client: func(ctx context.Context, region string) (*awsquery.Client, error) {
			c, err := a.config(ctx, region)
			return awsquery.AutoScaling(c), err
		}}),
		catalog.DriverKubernetes: Kubernetes(kubernetes.Config{}),
	}
}

// Kubernetes returns the driver kubernetes for the cluster that the environment names. cfg.Cluster is set here.
func Kubernetes(cfg kubernetes.Config) power.Driver {
	cfg.Cluster = (&cluster{}).find
	return kubernetes.New(cfg)
}

// Machines returns a function that lists a project's running and starting EC2 instances in the environment's region.
func Machines() func(ctx context.Context, project string) ([]power.Machine, error) {
	return (&account{regions: map[string]aws.Config{}}).ec2().Machines
}

// account caches AWS's settings by region, including the credentials they hold.
type account struct {
	mu      sync.Mutex
	regions map[string]aws.Config
}

func (a *account) ec2() *ec2.Driver {
	return ec2.New(ec2.Config{Client: a.ec2Client})
}

func (a *account) ec2Client(ctx context.Context, region string) (*awsquery.Client, error) {
	c, err := a.config(ctx, region)
	return awsquery.EC2(c), err
}

func (a *account) config(ctx context.Context, region string) (aws.Config, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c, ok := a.regions[region]; ok {
		return c, nil
	}
	var options []func(*config.LoadOptions) error
	if region != "" {
		options = append(options, config.WithRegion(region))
	}
	c, err := config.LoadDefaultConfig(ctx, options...)
	if err == nil {
		a.regions[region] = c
	}
	return c, err
}

// cluster caches the API server and its client, which re-reads its token file after a rotation.
type cluster struct {
	mu    sync.Mutex
	found *kubernetes.Cluster
}

// find finds the API server as kubectl does: by KUBECONFIG or ~/.kube/config, else by the service account of the pod
// that this program runs in.
func (c *cluster) find() (kubernetes.Cluster, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.found != nil {
		return *c.found, nil
	}
	rules := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil)
	cfg, err := rules.ClientConfig()
	if err != nil {
		return kubernetes.Cluster{}, err
	}
	namespace, _, err := rules.Namespace()
	if err != nil {
		return kubernetes.Cluster{}, err
	}
	server, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return kubernetes.Cluster{}, err
	}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return kubernetes.Cluster{}, err
	}
	// The client sends its token with every request, even after a redirect to another server.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.found = &kubernetes.Cluster{URL: server.String(), Namespace: namespace, Client: client}
	return *c.found, nil
}
