"""Single sign-on by OpenID Connect: a person who signed in at a provider signs in to Kant.

What the provider says of people becomes accounts and roles in `tenants.services.sign_in`.
"""
