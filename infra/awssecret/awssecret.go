// Package awssecret reads secrets of AWS Secrets Manager.
package awssecret

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"

	"reveille/infra/state"
)

// Read reads the present value of a secret, at most the 64 KiB that AWS keeps. Errors do not quote it.
func Read(ctx context.Context, c aws.Config, id string) ([]byte, error) {
	out, err := secretsmanager.NewFromConfig(c).GetSecretValue(ctx, &secretsmanager.GetSecretValueInput{SecretId: &id})
	if err == nil && out.SecretString == nil {
		err = errors.New("it has no text")
	}
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", id, err)
	}
	return []byte(*out.SecretString), nil
}

// maxCredential is the longest user or password that is taken, in bytes. ElastiCache allows 128.
const maxCredential = 512

// FollowRedis follows the user and the password of Redis in a secret, as state.FollowCredentials does. The secret is a JSON
// object with username, which may be missing, and password, the form that AWS's own rotation writes. It returns nil for
// no id: the URL's credentials then count.
func FollowRedis(id string, log *slog.Logger) *state.Credentials {
	if id == "" {
		return nil
	}
	load := sync.OnceValues(func() (aws.Config, error) { return config.LoadDefaultConfig(context.Background()) })
	return state.FollowCredentials(func(ctx context.Context) (user, password string, err error) {
		c, err := load()
		if err != nil {
			return "", "", err
		}
		text, err := Read(ctx, c, id)
		if err != nil {
			return "", "", err
		}
		user, password, err = credentials(text)
		if err != nil {
			err = fmt.Errorf("secret %s: %w", id, err)
		}
		return user, password, err
	}, log)
}

var errForm = errors.New(`want a JSON object such as {"username": "…", "password": "…"}`)

func credentials(text []byte) (user, password string, err error) {
	var c struct{ Username, Password string }
	if json.Unmarshal(text, &c) != nil || c.Password == "" || len(c.Password) > maxCredential || len(c.Username) > maxCredential {
		return "", "", errForm // the decoder's own error quotes the text
	}
	return c.Username, c.Password, nil
}
