// The stories of stories.py, by Apache's client for Go: ENDPOINT STORY TOPIC GROUP
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const wait = 60 * time.Second

var (
	endpoint, story, topic, group, user, secret string
	closing                                     []func()
	lock                                        sync.Mutex
	asked                                       = map[string]bool{}
	seen                                        = [][]any{}
	ctx                                         = context.Background()
)

type object map[string]any

func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}

func configuration(name string) *rmq.Config {
	return &rmq.Config{
		Endpoint:      endpoint,
		ConsumerGroup: name,
		Credentials:   &credentials.SessionCredentials{AccessKey: user, AccessSecret: secret},
	}
}

func producer() rmq.Producer {
	made, err := rmq.NewProducer(configuration(""), rmq.WithTopics(topic),
		rmq.WithTransactionChecker(&rmq.TransactionChecker{
			Check: func(view *rmq.MessageView) rmq.TransactionResolution {
				lock.Lock()
				defer lock.Unlock()
				asked[string(view.GetBody())] = true
				return rmq.COMMIT
			},
		}))
	check(err)
	check(made.Start())
	closing = append(closing, func() { _ = made.GracefulStop() })
	return made
}

func consumer(name string, expression *rmq.FilterExpression) rmq.SimpleConsumer {
	made, err := rmq.NewSimpleConsumer(configuration(name), rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: expression}))
	check(err)
	check(made.Start())
	closing = append(closing, func() { _ = made.GracefulStop() })
	return made
}

func message(number int) *rmq.Message {
	return &rmq.Message{Topic: topic, Body: []byte("body " + strconv.Itoa(number))}
}

// receive gives nothing where the client makes an error of an empty answer.
func receive(from rmq.SimpleConsumer, count int32, invisible time.Duration) []*rmq.MessageView {
	views, err := from.Receive(ctx, count, invisible)
	if err != nil {
		return nil
	}
	return views
}

func drain(from rmq.SimpleConsumer, count int, seconds time.Duration) []*rmq.MessageView {
	var found []*rmq.MessageView
	end := time.Now().Add(seconds)
	for len(found) < count && time.Now().Before(end) {
		for _, view := range receive(from, 32, 20*time.Second) {
			check(from.Ack(ctx, view))
			found = append(found, view)
		}
	}
	return found
}

func bodies(views []*rmq.MessageView) []string {
	found := []string{}
	for _, view := range views {
		found = append(found, string(view.GetBody()))
	}
	sort.Strings(found)
	return found
}

// waitForCalls waits until the listener was called so many times.
func waitForCalls(count int) {
	end := time.Now().Add(wait)
	for time.Now().Before(end) {
		lock.Lock()
		done := len(seen) >= count
		lock.Unlock()
		if done {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func listened(fails map[string]int, count int, send func(rmq.Producer)) [][]any {
	made, err := rmq.NewPushConsumer(configuration(group), rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{
			Consume: func(view *rmq.MessageView) rmq.ConsumerResult {
				lock.Lock()
				defer lock.Unlock()
				body := string(view.GetBody())
				seen = append(seen, []any{body, view.GetDeliveryAttempt()})
				if fails[body] > 0 {
					fails[body]--
					return rmq.FAILURE
				}
				return rmq.SUCCESS
			},
		}))
	check(err)
	check(made.Start())
	closing = append(closing, func() { _ = made.GracefulStop() })
	send(producer())
	waitForCalls(count)
	if story == "dead" {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test has seen the dead letter
	}
	lock.Lock()
	defer lock.Unlock()
	return append([][]any{}, seen...)
}

func sendAll(count int, messageGroup string) func(rmq.Producer) {
	return func(to rmq.Producer) {
		for number := 0; number < count; number++ {
			made := message(number)
			if messageGroup != "" {
				made.SetMessageGroup(messageGroup)
			}
			_, err := to.Send(ctx, made)
			check(err)
		}
	}
}

func simple() object {
	from, to := consumer(group, rmq.SUB_ALL), producer()
	sent := map[string]int{}
	for number := 0; number < 10; number++ {
		made := message(number)
		made.SetTag("tag" + strconv.Itoa(number%2))
		made.SetKeys("key"+strconv.Itoa(number), "all")
		made.AddProperty("shop", "shop "+strconv.Itoa(number))
		receipts, err := to.Send(ctx, made)
		check(err)
		sent[receipts[0].MessageID] = number
	}
	found := drain(from, 10, wait)
	sort.Slice(found, func(i, j int) bool { return string(found[i].GetBody()) < string(found[j].GetBody()) })
	seen := []object{}
	for _, view := range found {
		keys := append([]string{}, view.GetKeys()...)
		sort.Strings(keys)
		seen = append(seen, object{"number": sent[view.GetMessageId()], "body": string(view.GetBody()),
			"tag": view.GetTag(), "keys": keys, "shop": view.GetProperties()["shop"],
			"attempt": view.GetDeliveryAttempt(), "corrupted": false})
	}
	return object{"seen": seen, "left": len(receive(from, 1, 20*time.Second))}
}

func change() object {
	from := consumer(group, rmq.SUB_ALL)
	_, err := producer().Send(ctx, message(1))
	check(err)
	var first, again []*rmq.MessageView
	for len(first) == 0 {
		first = receive(from, 1, 60*time.Second)
	}
	began := time.Now()
	check(from.ChangeInvisibleDuration(first[0], 2*time.Second))
	for len(again) == 0 && time.Since(began) < wait {
		again = receive(from, 1, 20*time.Second)
	}
	seconds := time.Since(began).Seconds()
	check(from.Ack(ctx, again[0]))
	return object{"same": again[0].GetMessageId() == first[0].GetMessageId(), "seconds": seconds,
		"attempts": []int32{first[0].GetDeliveryAttempt(), again[0].GetDeliveryAttempt()},
		"left":     len(receive(from, 1, 20*time.Second))}
}

func push() object {
	seen := listened(map[string]int{"body 3": 1}, 11, sendAll(10, ""))
	sort.Slice(seen, func(i, j int) bool { return fmt.Sprint(seen[i]) < fmt.Sprint(seen[j]) })
	return object{"seen": seen}
}

// fifo sends a message when the one before was seen. This client goes on with what it got by the
// same receive when a message has failed, and tries that one later (5.1.4).
func fifo() object {
	found := []any{}
	for _, each := range listened(map[string]int{"body 2": 1}, 7, func(to rmq.Producer) {
		for number := 0; number < 6; number++ {
			made := message(number)
			made.SetMessageGroup("order-1")
			_, err := to.Send(ctx, made)
			check(err)
			waitForCalls(number + 1)
		}
	}) {
		found = append(found, each[0])
	}
	return object{"seen": found}
}

func dead() object {
	attempts := []any{}
	for _, each := range listened(map[string]int{"body 1": 100}, 2, func(to rmq.Producer) {
		_, err := to.Send(ctx, message(1))
		check(err)
	}) {
		attempts = append(attempts, each[1])
	}
	return object{"attempts": attempts}
}

func delay() object {
	from, to := consumer(group, rmq.SUB_ALL), producer()
	began := time.Now()
	first, second := message(1), message(2)
	first.SetDelayTimestamp(began.Add(4 * time.Second))
	second.SetDelayTimestamp(began.Add(10 * time.Second))
	_, err := to.Send(ctx, first)
	check(err)
	later, err := to.Send(ctx, second)
	check(err)
	_, err = to.Recall(ctx, topic, later[0].RecallHandle)
	check(err)
	found := drain(from, 1, wait)
	seconds := time.Since(began).Seconds()
	return object{"bodies": bodies(found), "seconds": seconds, "recalled": true,
		"left": bodies(drain(from, 1, 14*time.Second))}
}

func transaction() object {
	from, to := consumer(group, rmq.SUB_ALL), producer()
	for number, verb := range []string{"", "commit", "rollback", "none"} {
		if verb == "" {
			continue
		}
		begun := to.BeginTransaction()
		_, err := to.SendWithTransaction(ctx, message(number), begun)
		check(err)
		switch verb {
		case "commit":
			check(begun.Commit())
		case "rollback":
			check(begun.RollBack())
		}
	}
	found := bodies(drain(from, 2, wait))
	left := len(receive(from, 1, 20*time.Second))
	lock.Lock()
	defer lock.Unlock()
	names := []string{}
	for name := range asked {
		names = append(names, name)
	}
	sort.Strings(names)
	return object{"bodies": found, "asked": names, "left": left}
}

func filters() object {
	byTag, to := consumer(group, rmq.NewFilterExpression("red || blue")), producer()
	for number, tag := range []string{"red", "green", "blue", "red"} {
		made := message(number)
		made.SetTag(tag)
		_, err := to.Send(ctx, made)
		check(err)
	}
	tagged := bodies(drain(byTag, 3, wait))
	bySQL := consumer(group+"-sql", rmq.NewFilterExpressionWithType("size > 1", rmq.SQL92))
	receive(bySQL, 1, 20*time.Second)
	for number := 0; number < 4; number++ {
		made := message(number + 10)
		made.AddProperty("size", strconv.Itoa(number))
		_, err := to.Send(ctx, made)
		check(err)
	}
	return object{"tagged": tagged, "sized": bodies(drain(bySQL, 2, wait))}
}

func main() {
	words := append(os.Args[1:], "", "")
	endpoint, story, topic, group, user, secret = words[0], words[1], words[2], words[3], words[4], words[5]
	stories := map[string]func() object{"simple": simple, "change": change, "push": push, "fifo": fifo,
		"delay": delay, "transaction": transaction, "filters": filters, "dead": dead}
	result, err := json.Marshal(stories[story]())
	check(err)
	fmt.Println("RESULT " + string(result))
	for index := len(closing) - 1; index >= 0; index-- {
		closing[index]()
	}
}
